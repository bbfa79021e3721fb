package hnstest

import (
	"encoding/json"
	"fmt"

	"flannel/pkg/hns"
)

// Code is a result as HNS gives it: an HRESULT, 0 for success (winerror.h).
type Code uint32

// Results of HNS, by the names of winerror.h.
const (
	NetworkNotFound   Code = 0x803b0001
	EndpointNotFound  Code = 0x803b0002
	AdapterNotFound   Code = 0x803b0006
	PolicyNotFound    Code = 0x803b0008
	InvalidNetwork    Code = 0x803b000a
	InvalidType       Code = 0x803b000b
	InvalidEndpoint   Code = 0x803b000c
	InvalidPolicy     Code = 0x803b000d
	InvalidPolicyType Code = 0x803b000e
	NetworkExists     Code = 0x803b0010
	PolicyExists      Code = 0x803b0012
	PortExists        Code = 0x803b0013
	AlreadyAttached   Code = 0x803b0014
	Unsupported       Code = 0x803b0015
	InvalidJSON       Code = 0x803b001b
	InvalidIP         Code = 0x803b001e
	AddressTaken      Code = 0x803b002f

	NotImplemented Code = 0x80004001
	RPCUnavailable Code = 0x800706ba // the service is not there
	RPCFailed      Code = 0x800706be // it went away in the middle
)

// Results of Win32 (winerror.h), as HRESULTs: the IP Helper calls return their low half.
const (
	invalidHandle Code = win32 | 6
	insufficient  Code = win32 | 122
	invalidArg    Code = win32 | 87
	notSupported  Code = win32 | 50
	overflow      Code = win32 | 111
	unreachable   Code = win32 | 1231
	elementGone   Code = win32 | 1168
	objectExists  Code = win32 | 5010

	win32 = 0x80070000
)

// Error says the code only: the texts of HNS are in the language of the machine, and nobody may rely on them.
func (c Code) Error() string { return fmt.Sprintf("error 0x%08x", uint32(c)) }

// Is tells which of package hns's errors the code stands for.
func (c Code) Is(target error) bool {
	switch c {
	case NetworkNotFound, EndpointNotFound, PolicyNotFound, elementGone:
		return target == hns.ErrNotFound
	case NetworkExists, PolicyExists, PortExists, objectExists:
		return target == hns.ErrExists
	case RPCUnavailable, RPCFailed:
		return target == hns.ErrUnavailable
	case NotImplemented, Unsupported, notSupported:
		return target == hns.ErrUnsupported
	}
	return false
}

// err is nil for success.
func (c Code) err() error {
	if c == 0 {
		return nil
	}
	return c
}

// record is the document that HNS returns beside a code.
func (c Code) record() string {
	if c == 0 {
		return ""
	}
	return text(map[string]any{"Success": false, "Error": "(a text in the language of the machine)", "ErrorCode": uint32(c)})
}

// text is v as JSON, without the escapes for HTML that HNS does not write either.
func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return "" // nothing here holds what JSON cannot say
	}
	return string(b)
}
