package hns

import (
	"errors"
	"fmt"
)

// Errors of HNS, of the IP stack and of other services, for errors.Is. They are derived from the code, since the texts
// are localized. ErrTimeout is from Client, CategoryClient and FirewallClient, whose calls have a limit.
//
// After ErrUnavailable and ErrTimeout, the driver (pkg/windows) waits for the service. It takes any other error for a
// refusal of the request. Of a refused entry for a peer, it says so in the peer's status, except with ErrUnsupported:
// that is about this Windows, and not about the entry.
var (
	ErrNotFound     = errors.New("not found")
	ErrExists       = errors.New("already exists")
	ErrUnavailable  = errors.New("the service does not answer")
	ErrUnsupported  = errors.New("not supported by this Windows")
	ErrAddressInUse = errors.New("the address is in use")
	ErrTimeout      = errors.New("no answer in time")
)

// Code is an HRESULT. Those of HNS have the facility 0x3b
// (https://learn.microsoft.com/windows/win32/com/com-error-codes-10), those of Win32 errors the facility 7 (0x8007).
type Code uint32

// Codes that have a meaning below, and others to which a caller reacts.
const (
	NetworkNotFound      Code = 0x803b0001
	EndpointNotFound     Code = 0x803b0002
	AdapterNotFound      Code = 0x803b0006
	portNotFound         Code = 0x803b0007
	PolicyNotFound       Code = 0x803b0008
	InvalidNetworkType   Code = 0x803b000b
	InvalidPolicy        Code = 0x803b000d
	InvalidPolicyType    Code = 0x803b000e
	NetworkExists        Code = 0x803b0010
	PolicyExists         Code = 0x803b0012
	PortExists           Code = 0x803b0013
	EndpointAttached     Code = 0x803b0014
	RequestUnsupported   Code = 0x803b0015
	mappingUnsupported   Code = 0x803b0016
	InvalidJSON          Code = 0x803b001b
	ManagerStopped       Code = 0x803b0020
	noRequestHandlers    Code = 0x803b0022
	HandlerUnsupported   Code = 0x803b0023 // GCN_E_REQUEST_UNSUPPORTED; HCN_E_REQUEST_UNSUPPORTED is RequestUnsupported
	NetAdapterNotFound   Code = 0x803b0026
	AddressInUse         Code = 0x803b002f // of endpoints (kubernetes#100962)
	NotImplemented       Code = 0x80004001
	ElementNotFound      Code = 0x80070490
	FileNotFound         Code = 0x80070002 // also of the registry
	AccessDenied         Code = 0x80070005
	InvalidParameter     Code = 0x80070057
	fileExists           Code = 0x80070050
	AlreadyExists        Code = 0x800700b7
	NotSupported         Code = 0x80070032
	ObjectExists         Code = 0x80071392 // of routes and addresses
	serviceDisabled      Code = 0x80070422
	serviceNotActive     Code = 0x80070426
	serviceMissing       Code = 0x80070424 // the feature Containers is not installed: the driver waits until it is
	RPCServerUnavailable Code = 0x800706ba
	rpcServerTooBusy     Code = 0x800706bb
	RPCCallFailed        Code = 0x800706be
	RPCNoEndpoint        Code = 0x800706d9 // no more endpoints from the endpoint mapper: the service is just starting
	noSuchLibrary        Code = 0x8007007e
	NoSuchFunction       Code = 0x8007007f
)

// meanings are the errors above that codes mean. A code that is not here has only its number and text. An older HNS has
// InvalidPolicyType and InvalidNetworkType for a type that it does not know. InvalidPolicy and InvalidParameter are about
// values; callers that react to them compare the Code.
var meanings = map[Code]error{
	NetworkNotFound: ErrNotFound, EndpointNotFound: ErrNotFound, PolicyNotFound: ErrNotFound, portNotFound: ErrNotFound,
	AdapterNotFound: ErrNotFound, NetAdapterNotFound: ErrNotFound, ElementNotFound: ErrNotFound,
	FileNotFound: ErrNotFound, AddressInUse: ErrAddressInUse,
	NetworkExists: ErrExists, PolicyExists: ErrExists, PortExists: ErrExists, EndpointAttached: ErrExists,
	fileExists: ErrExists, AlreadyExists: ErrExists, ObjectExists: ErrExists,
	RequestUnsupported: ErrUnsupported, mappingUnsupported: ErrUnsupported, HandlerUnsupported: ErrUnsupported,
	InvalidPolicyType: ErrUnsupported, InvalidNetworkType: ErrUnsupported, NotImplemented: ErrUnsupported,
	NotSupported: ErrUnsupported, noSuchLibrary: ErrUnsupported, NoSuchFunction: ErrUnsupported,
	serviceDisabled: ErrUnavailable, serviceNotActive: ErrUnavailable, serviceMissing: ErrUnavailable,
	ManagerStopped: ErrUnavailable, noRequestHandlers: ErrUnavailable,
	RPCServerUnavailable: ErrUnavailable, rpcServerTooBusy: ErrUnavailable, RPCCallFailed: ErrUnavailable,
	RPCNoEndpoint: ErrUnavailable,
}

// Error is the error of a call that failed.
type Error struct {
	Call   string // "HcnModifyNetwork"
	Code   Code
	Detail string // localized text of HNS, only for people
}

func (e *Error) Error() string {
	text := fmt.Sprintf("%s: error 0x%08x", e.Call, uint32(e.Code))
	if meaning := meanings[e.Code]; meaning != nil {
		text = fmt.Sprintf("%s: %v (0x%08x)", e.Call, meaning, uint32(e.Code))
	}
	if e.Detail != "" {
		text += ": " + e.Detail
	}
	return text
}

// Unwrap returns the error above that the code means, nil if there is none.
func (e *Error) Unwrap() error { return meanings[e.Code] }
