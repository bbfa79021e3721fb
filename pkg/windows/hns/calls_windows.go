package hns

// HNS is called through Microsoft's library hcsshim: its package hcn for deleting and for HNS's version, its root package
// for what only the older API can do. Where hcsshim loses handles or information that we need, dll_windows.go and
// notify_windows.go call the documented entry points directly. Documentation/adr/0003 has the reasons.

import (
	"errors"
	"net/netip"
	"strings"

	"github.com/Microsoft/hcsshim"
	"github.com/Microsoft/hcsshim/hcn"
	"golang.org/x/sys/windows"
)

// hostCompartment is the network compartment of the host itself.
const hostCompartment = 1

// States of an endpoint that is attached to one compartment, or shared by several, in documents of the older API
// (EndpointState of hcsshim).
const (
	attached        = 2
	attachedSharing = 3
)

// service implements Calls with the HNS of this machine; dll_windows.go and notify_windows.go have the other methods.
// Client calls them on several goroutines; only listeners has a state, with a lock of its own. Where package hcn would
// panic, because the DLL lacks an entry point, methods call require first.
type service struct {
	dll       *windows.LazyDLL // computenetwork.dll, loaded by the first call
	listeners listeners        // of Notify
}

// Open returns the HNS of this machine. If it is not installed or not running, the first call returns an error.
func Open() (Calls, error) {
	return &service{dll: windows.NewLazySystemDLL("computenetwork.dll")}, nil
}

func (*service) NetworksV1() (all []Network, err error) {
	networks, err := hcsshim.HNSListNetworkRequest("GET", "", "")
	for _, n := range networks {
		all = append(all, Network{ID: n.Id, Name: n.Name, Type: n.Type})
	}
	return all, translate(err)
}

func (*service) DeleteNetworkV1(id string) error {
	_, err := hcsshim.HNSNetworkRequest("DELETE", id, "")
	return translate(err)
}

func (s *service) DeleteNetwork(id string) error {
	if err := s.require("HcnDeleteNetwork"); err != nil {
		return err
	}
	return translate((&hcn.HostComputeNetwork{Id: id}).Delete())
}

func (s *service) DeleteEndpoint(id string) error {
	if err := s.require("HcnDeleteEndpoint"); err != nil {
		return err
	}
	return translate((&hcn.HostComputeEndpoint{Id: id}).Delete())
}

func (s *service) Version() (Version, error) {
	globals, err := hcn.GetGlobals()
	if err != nil {
		return Version{}, translate(err)
	}
	return Version{globals.Version.Major, globals.Version.Minor}, nil
}

func (s *service) ManagementIP(network string) (netip.Addr, error) {
	n, err := hcsshim.GetHNSNetworkByID(network)
	if err != nil || n.ManagementIP == "" {
		return netip.Addr{}, translate(err)
	}
	return netip.ParseAddr(n.ManagementIP)
}

func (*service) CreateEndpointV1(network, name string, ips []netip.Prefix) (string, error) {
	e := hcsshim.HNSEndpoint{Name: name, VirtualNetwork: network}
	for _, p := range ips {
		if p.Addr().Is4() {
			e.IPAddress, e.PrefixLength = p.Addr().AsSlice(), uint8(p.Bits())
		} else {
			e.IPv6Address, e.IPv6PrefixLength = p.Addr().AsSlice(), uint8(p.Bits())
		}
	}
	made, err := e.Create()
	if err != nil {
		return "", translate(err)
	}
	return made.Id, nil
}

// AttachHost implements Calls. A refusal has no code in hcsshim, only a text in the user's language. Therefore the state
// of the endpoint is read after it, to find out whether the endpoint is already attached or does not exist. An endpoint
// that is attached to a container counts as attached, too: the older API does not name the compartment.
func (s *service) AttachHost(endpoint string) error {
	if err := s.require("HcnOpenEndpoint"); err != nil { // for s.Endpoint after a refusal
		return err
	}
	refused := (&hcsshim.HNSEndpoint{Id: endpoint}).HostAttach(hostCompartment)
	if refused == nil {
		return nil
	}
	if e, err := hcsshim.GetHNSEndpointByID(endpoint); err == nil && (e.State == attached || e.State == attachedSharing) {
		return nil
	}
	if _, err := s.Endpoint(endpoint); errors.Is(err, ErrNotFound) {
		return err
	}
	return translate(refused)
}

func (s *service) EndpointUse(id string) (Use, error) {
	e, err := hcsshim.GetHNSEndpointByID(id)
	if err != nil {
		return Use{}, translate(err)
	}
	return Use{Containers: e.SharedContainers, Attached: e.State == attached || e.State == attachedSharing}, nil
}

// translate converts an error of hcsshim to an *Error with its code. Errors without a code, such as most of the older
// API, are returned unchanged.
func translate(err error) error {
	var cause error
	// The type of the inner error is not exported by hcsshim, and neither type has a method Unwrap.
	var outer *hcn.HcnError
	inner := hcn.HcnError{}.HcsError // a nil pointer of the inner type, for errors.As
	if errors.As(err, &outer) {
		cause = outer.Err
	} else if errors.As(err, &inner) {
		cause = inner.Err
	}
	var errno windows.Errno
	if !errors.As(cause, &errno) {
		return err
	}
	code := Code(errno)
	if errno <= 0xffff { // a Win32 code, which hcsshim extracted from its HRESULT
		code |= 0x80070000
	}
	// "hcnOpenNetwork failed in Win32: <text> (0x803b0001)"; something may stand before the name.
	before, detail, _ := strings.Cut(err.Error(), " failed in Win32: ")
	return &Error{Call: before[strings.LastIndex(before, " ")+1:], Code: code, Detail: detail}
}
