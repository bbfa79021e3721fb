package hns

// HNS is called through Microsoft's library, hcsshim: package hcn for documents of schema 2, its root package for what
// only the older API knows. Where hcsshim loses what we need, the documented entry points are called as they are: see
// dll_windows.go and notify_windows.go, and for the reasons Documentation/adr/0003.
//
// Documents pass through hcn's structs, which have every field that we read or write. Settings of policies are raw there.

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/Microsoft/hcsshim"
	"github.com/Microsoft/hcsshim/hcn"
	"golang.org/x/sys/windows"
)

// hostCompartment is the network compartment of the host itself.
const hostCompartment = 1

// States of an endpoint that is in use, by one or by several.
const (
	attached        = 2
	attachedSharing = 3
)

// listAgain is how often a list is read before we believe that it cannot be.
const listAgain = 5

// service is the HNS of this machine.
type service struct {
	dll       *windows.LazyDLL // computenetwork.dll
	listeners listeners
}

// Open returns the HNS of this machine. That it is not installed, or not up, shows itself at the first call.
func Open() (Calls, error) {
	return &service{dll: windows.NewLazySystemDLL("computenetwork.dll")}, nil
}

func (s *service) Networks() ([]json.RawMessage, error) {
	if err := s.offers("HcnEnumerateNetworks"); err != nil {
		return nil, err
	}
	return list(hcn.ListNetworks, networkText)
}

func (s *service) CreateNetwork(document json.RawMessage) (json.RawMessage, error) {
	if err := s.offers("HcnCreateNetwork"); err != nil {
		return nil, err
	}
	var asked hcn.HostComputeNetwork
	if err := json.Unmarshal(document, &asked); err != nil {
		return nil, err
	}
	made, err := asked.Create()
	if err != nil {
		return nil, translate(err)
	}
	return networkText(*made), nil
}

func (s *service) DeleteNetwork(id string) error {
	if err := s.offers("HcnDeleteNetwork"); err != nil {
		return err
	}
	return translate((&hcn.HostComputeNetwork{Id: id}).Delete())
}

func (s *service) Endpoints(network string) ([]json.RawMessage, error) {
	if err := s.offers("HcnEnumerateEndpoints"); err != nil {
		return nil, err
	}
	return list(func() ([]hcn.HostComputeEndpoint, error) { return hcn.ListEndpointsOfNetwork(network) },
		func(e hcn.HostComputeEndpoint) json.RawMessage { return encode(e) })
}

func (s *service) DeleteEndpoint(id string) error {
	if err := s.offers("HcnDeleteEndpoint"); err != nil {
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

// AttachHost learns from the endpoint itself what a refusal means: hcsshim has no code for it, only a text in the user's
// language.
func (s *service) AttachHost(endpoint string) error {
	if err := s.offers("HcnOpenEndpoint"); err != nil {
		return err
	}
	refused := (&hcsshim.HNSEndpoint{Id: endpoint}).HostAttach(hostCompartment)
	if refused == nil {
		return nil
	}
	if e, err := hcsshim.GetHNSEndpointByID(endpoint); err == nil && (e.State == attached || e.State == attachedSharing) {
		return nil
	}
	_, err := hcn.GetEndpointByID(endpoint)
	if err = translate(err); errors.Is(err, ErrNotFound) {
		return err
	}
	return translate(refused)
}

// list reads again when one of the list goes while it is read, for which hcsshim gives up all. That it went on and on is
// not to be taken for a network that is not there.
func list[T any](call func() ([]T, error), document func(T) json.RawMessage) ([]json.RawMessage, error) {
	var theirs []T
	err := ErrNotFound
	for again := 0; again < listAgain && errors.Is(err, ErrNotFound); again++ {
		theirs, err = call()
		err = translate(err)
	}
	if errors.Is(err, ErrNotFound) {
		return nil, fmt.Errorf("they come and go: %v", err)
	}
	var all []json.RawMessage
	for _, one := range theirs {
		all = append(all, document(one))
	}
	return all, err
}

// networkText is a network's document, the settings of its policies byte for byte as HNS has them: the encoder would
// change their white space.
func networkText(n hcn.HostComputeNetwork) json.RawMessage {
	var policies []Policy
	for _, p := range n.Policies {
		policies = append(policies, Policy{string(p.Type), p.Settings})
	}
	n.Policies = nil
	var b bytes.Buffer
	b.WriteByte('{')
	writePolicies(&b, policies)
	b.WriteByte(',') // the rest has the version of its schema at least
	b.Write(bytes.TrimPrefix(encode(n), []byte("{")))
	return b.Bytes()
}

// translate finds the code in an error of hcsshim. What has none stays as it is: a refusal by the older API among others.
func translate(err error) error {
	if errors.As(err, new(hcn.EndpointNotFoundError)) {
		return &Error{Call: "hcnEnumerateEndpoints", Code: EndpointNotFound}
	}
	var cause error
	// The type of the inner error has no name outside of hcsshim, and neither unwraps.
	var outer *hcn.HcnError
	inner := hcn.HcnError{}.HcsError
	if errors.As(err, &outer) {
		cause = outer.Err
	} else if errors.As(err, &inner) {
		cause = inner.Err
	}
	var number windows.Errno
	if !errors.As(cause, &number) {
		return err
	}
	code := Code(number)
	if number <= 0xffff { // of Win32, which hcsshim takes out of its HRESULT
		code |= 0x80070000
	}
	before, detail, _ := strings.Cut(err.Error(), " failed in Win32: ")
	return &Error{Call: before[strings.LastIndex(before, " ")+1:], Code: code, Detail: detail}
}
