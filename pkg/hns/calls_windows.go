package hns

// HNS is called directly, by its documented entry points
// (https://learn.microsoft.com/virtualization/api/hcn/hns_overview). Microsoft's Go library for them, hcsshim, loses
// what we need: the handle of a network whose modification, or whose new endpoint, was refused; the code of an error of
// the older API; the upper half of a VNI; and it reads the whole network, thousands of policies, after every
// modification. The tests for Windows read with hcsshim what we wrote, and the other way round.
//
// computenetwork.dll, all returning an HRESULT; strings are UTF-16, those that come back are freed with CoTaskMemFree:
//
//	HcnEnumerateNetworks(query, *networks, *record)
//	HcnOpenNetwork(*guid, *handle, *record)
//	HcnQueryNetworkProperties(handle, query, *properties, *record)
//	HcnCreateNetwork(*guid, settings, *handle, *record)
//	HcnModifyNetwork(handle, settings, *record)
//	HcnDeleteNetwork(*guid, *record)
//	HcnCloseNetwork(handle)
//	HcnEnumerateEndpoints, HcnOpenEndpoint, HcnQueryEndpointProperties, HcnDeleteEndpoint, HcnCloseEndpoint: likewise
//	HcnCreateEndpoint(network's handle, *guid, settings, *handle, *record)
//	HcnRegisterServiceCallback(callback, context, *handle), HcnUnregisterServiceCallback(handle): see notify_windows.go
//
// vmcompute.dll, for what has no entry point of its own:
//
//	HNSCall(method, path, request, *response)
//	GET /globals/version; GET /networks/<ID> (ManagementIP); POST /endpoints/<ID>/attach

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/windows"
)

// everything asks for all, in documents of schema 2.0.
const everything = `{"SchemaVersion":{"Major":2,"Minor":0}}`

// kind is what the names of its entry points are made of.
type kind struct{ one, many string }

var (
	networks  = kind{"Network", "Networks"}
	endpoints = kind{"Endpoint", "Endpoints"}
)

// service is the HNS of this machine.
type service struct {
	network, compute *windows.LazyDLL
	listeners        listeners
}

// Open returns the HNS of this machine. That it is not installed, or not up, shows itself at the first call.
func Open() (Calls, error) {
	return &service{
		network: windows.NewLazySystemDLL("computenetwork.dll"),
		compute: windows.NewLazySystemDLL("vmcompute.dll"),
	}, nil
}

func (s *service) Networks() ([]json.RawMessage, error) { return s.list(networks, everything) }

func (s *service) Network(id string) (json.RawMessage, error) { return s.get(networks, id) }

func (s *service) CreateNetwork(document json.RawMessage) (json.RawMessage, error) {
	text, err := windows.UTF16PtrFromString(string(document))
	if err != nil {
		return nil, err
	}
	var id windows.GUID // HNS gives it
	var handle uintptr
	if err := s.call(nil, "HcnCreateNetwork", uintptr(unsafe.Pointer(&id)), uintptr(unsafe.Pointer(text)), uintptr(unsafe.Pointer(&handle))); err != nil {
		return nil, err
	}
	defer s.shut(networks, handle)
	return s.properties(networks, handle)
}

func (s *service) DeleteNetwork(id string) error { return s.remove(networks, id) }

func (s *service) ModifyNetwork(id string, request json.RawMessage) error {
	text, err := windows.UTF16PtrFromString(string(request))
	if err != nil {
		return err
	}
	handle, err := s.open(networks, id)
	if err != nil {
		return err
	}
	defer s.shut(networks, handle)
	return s.call(nil, "HcnModifyNetwork", handle, uintptr(unsafe.Pointer(text)))
}

func (s *service) Endpoints(network string) ([]json.RawMessage, error) {
	// The filter is in terms of the older schema.
	filter := encode(struct{ VirtualNetwork string }{network})
	query := encode(struct {
		SchemaVersion Version
		Filter        string
	}{schema(), string(filter)})
	return s.list(endpoints, string(query))
}

func (s *service) CreateEndpoint(network string, document json.RawMessage) (json.RawMessage, error) {
	text, err := windows.UTF16PtrFromString(string(document))
	if err != nil {
		return nil, err
	}
	on, err := s.open(networks, network)
	if err != nil {
		return nil, err
	}
	defer s.shut(networks, on)
	var id windows.GUID
	var handle uintptr
	err = s.call(nil, "HcnCreateEndpoint", on, uintptr(unsafe.Pointer(&id)), uintptr(unsafe.Pointer(text)), uintptr(unsafe.Pointer(&handle)))
	if err != nil {
		return nil, err
	}
	defer s.shut(endpoints, handle)
	return s.properties(endpoints, handle)
}

func (s *service) DeleteEndpoint(id string) error { return s.remove(endpoints, id) }

func (s *service) Version() (v Version, err error) {
	return v, s.older("GET", "/globals/version", "", &v)
}

func (s *service) ManagementIP(network string) (netip.Addr, error) {
	var n struct{ ManagementIP string }
	if err := s.older("GET", "/networks/"+network, "", &n); err != nil || n.ManagementIP == "" {
		return netip.Addr{}, err
	}
	return netip.ParseAddr(n.ManagementIP)
}

func (s *service) AttachHost(endpoint string) error {
	err := s.older("POST", "/endpoints/"+endpoint+"/attach", `{"SystemType":"Host","CompartmentId":1}`, nil)
	if errors.Is(err, ErrExists) {
		return nil
	}
	return err
}

func (s *service) list(k kind, query string) ([]json.RawMessage, error) {
	text, err := windows.UTF16PtrFromString(query)
	if err != nil {
		return nil, err
	}
	var out *uint16
	if err := s.call(&out, "HcnEnumerate"+k.many, uintptr(unsafe.Pointer(text)), uintptr(unsafe.Pointer(&out))); err != nil {
		return nil, err
	}
	var ids []string
	if err := json.Unmarshal([]byte(take(&out)), &ids); err != nil {
		return nil, fmt.Errorf("HcnEnumerate%s: %w", k.many, err)
	}
	var all []json.RawMessage
	for _, id := range ids {
		one, err := s.get(k, id)
		if errors.Is(err, ErrNotFound) { // gone since
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

func (s *service) get(k kind, id string) (json.RawMessage, error) {
	handle, err := s.open(k, id)
	if err != nil {
		return nil, err
	}
	defer s.shut(k, handle)
	return s.properties(k, handle)
}

func (s *service) open(k kind, id string) (handle uintptr, err error) {
	guid, err := parseGUID(id)
	if err != nil {
		return 0, err
	}
	err = s.call(nil, "HcnOpen"+k.one, uintptr(unsafe.Pointer(&guid)), uintptr(unsafe.Pointer(&handle)))
	return handle, err
}

func (s *service) properties(k kind, handle uintptr) (json.RawMessage, error) {
	text, err := windows.UTF16PtrFromString(everything)
	if err != nil {
		return nil, err
	}
	var out *uint16
	if err := s.call(&out, "HcnQuery"+k.one+"Properties", handle, uintptr(unsafe.Pointer(text)), uintptr(unsafe.Pointer(&out))); err != nil {
		return nil, err
	}
	return json.RawMessage(take(&out)), nil
}

func (s *service) remove(k kind, id string) error {
	guid, err := parseGUID(id)
	if err != nil {
		return err
	}
	return s.call(nil, "HcnDelete"+k.one, uintptr(unsafe.Pointer(&guid)))
}

// shut closes a handle. That it cannot be closed changes nothing for the caller.
func (s *service) shut(k kind, handle uintptr) {
	if proc := s.network.NewProc("HcnClose" + k.one); proc.Find() == nil {
		_, _, _ = proc.Call(handle)
	}
}

func parseGUID(id string) (windows.GUID, error) {
	guid, err := windows.GUIDFromString("{" + id + "}")
	if err != nil {
		return guid, fmt.Errorf("%q is not an ID of HNS", id)
	}
	return guid, nil
}
