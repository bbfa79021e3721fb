package hns

// This file calls entry points of computenetwork.dll (https://learn.microsoft.com/virtualization/api/hcn/hns_overview)
// without hcsshim. hcsshim leaves a handle open when HNS refuses what is to be done with it: to read the object, for
// instance because somebody has just deleted it, to change a network, or to create an endpoint on it. It also reads the
// whole network after each change, and all endpoints in one call, however long that takes. All entry points return an
// HRESULT. Strings are UTF-16; returned strings must be freed with CoTaskMemFree:
//
//	HcnEnumerateNetworks(query, *ids, *record)
//	HcnOpenNetwork(*guid, *handle, *record)
//	HcnQueryNetworkProperties(handle, query, *properties, *record)
//	HcnModifyNetwork(handle, settings, *record)
//	HcnCreateNetwork(*guid, settings, *handle, *record)
//	HcnCreateEndpoint(network's handle, *guid, settings, *handle, *record)
//	HcnCloseNetwork(handle)
//
// Endpoints and namespaces have the same entry points as networks, but for those that create and modify.
//
// Client makes each call on a goroutine of its own, several at the same time, and abandons a call that takes too long
// (run.go).

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/windows"
)

// maxLists is how often the networks are listed while some of them disappear.
const maxLists = 5

// Networks lists again if a network is deleted before its document is read. If that persists, the error is not
// ErrNotFound, so that nobody takes it for a missing network.
func (s *service) Networks() ([]json.RawMessage, error) {
	for range maxLists {
		all, err := s.readNetworks()
		if !errors.Is(err, ErrNotFound) {
			return all, err
		}
	}
	return nil, errors.New("networks are being deleted all the time")
}

func (s *service) readNetworks() (all []json.RawMessage, err error) {
	ids, err := s.enumerate("Networks", nil)
	for _, id := range ids {
		document, err := s.read("Network", id, NetworkNotFound)
		if err != nil {
			return nil, err
		}
		all = append(all, document)
	}
	return all, err
}

// CreateNetwork, like CreateEndpoint, returns an error also if HNS has created the network and cannot return its document.
func (s *service) CreateNetwork(document json.RawMessage) (json.RawMessage, error) {
	text, err := windows.UTF16PtrFromString(string(document))
	if err != nil {
		return nil, err
	}
	var id windows.GUID // zero: HNS chooses it
	var handle uintptr
	err = s.call(nil, "HcnCreateNetwork", uintptr(unsafe.Pointer(&id)), uintptr(unsafe.Pointer(text)), uintptr(unsafe.Pointer(&handle)))
	if err != nil {
		return nil, err
	}
	return s.queryProperties("Network", handle)
}

// ModifyNetwork implements Calls.
func (s *service) ModifyNetwork(id string, request json.RawMessage) error {
	text, err := windows.UTF16PtrFromString(string(request))
	if err != nil {
		return err
	}
	return s.withNetwork(id, func(handle uintptr) error {
		// nil: it returns no text.
		return s.call(nil, "HcnModifyNetwork", handle, uintptr(unsafe.Pointer(text)))
	})
}

// CreateEndpoint returns an error also if HNS has created the endpoint and cannot return its document. The callers look for
// an endpoint by its name before they create one, and so find it at their next try.
func (s *service) CreateEndpoint(network string, document json.RawMessage) (made json.RawMessage, err error) {
	text, err := windows.UTF16PtrFromString(string(document))
	if err != nil {
		return nil, err
	}
	err = s.withNetwork(network, func(on uintptr) error { // on is the network's handle
		var id windows.GUID // zero: HNS chooses it
		var handle uintptr
		err := s.call(nil, "HcnCreateEndpoint", on, uintptr(unsafe.Pointer(&id)), uintptr(unsafe.Pointer(text)), uintptr(unsafe.Pointer(&handle)))
		if err != nil {
			return err
		}
		made, err = s.queryProperties("Endpoint", handle)
		return err
	})
	return made, err
}

// EndpointIDs ignores network if name is not empty: callers look for a name on all networks.
func (s *service) EndpointIDs(network, name string) ([]string, error) {
	condition := map[string]string{"VirtualNetwork": network}
	if name != "" {
		condition = map[string]string{"Name": name}
	}
	return s.enumerate("Endpoints", condition)
}

// NamespaceIDs implements Calls.
func (s *service) NamespaceIDs() ([]string, error) { return s.enumerate("Namespaces", nil) }

// enumerate returns the IDs of the objects that meet the conditions; nil: of all objects. objects is a part of the
// entry point's name: "Networks", "Endpoints" or "Namespaces".
func (s *service) enumerate(objects string, conditions map[string]string) (ids []string, err error) {
	filter := ""
	if conditions != nil {
		filter = string(encode(conditions))
	}
	query, err := encodeQuery(filter)
	if err != nil {
		return nil, err
	}
	var out *uint16
	err = s.call(&out, "HcnEnumerate"+objects, uintptr(unsafe.Pointer(query)), uintptr(unsafe.Pointer(&out)))
	text := takeText(&out)
	if err != nil {
		return nil, err
	}
	err = json.Unmarshal([]byte(text), &ids) // without any object, the text is an empty list, as hcsshim expects, too
	return ids, err
}

// encodeQuery encodes a query for documents in our schema. filter has the conditions as JSON; "": none.
func encodeQuery(filter string) (*uint16, error) {
	return windows.UTF16PtrFromString(string(encode(struct {
		SchemaVersion Version
		Filter        string `json:",omitempty"`
	}{schema(), filter})))
}

// Endpoint implements Calls.
func (s *service) Endpoint(id string) (json.RawMessage, error) {
	return s.read("Endpoint", id, EndpointNotFound)
}

// Namespace implements Calls.
func (s *service) Namespace(id string) (json.RawMessage, error) {
	return s.read("Namespace", id, ElementNotFound)
}

// read returns the document of an object. If the ID is invalid, there is no such object: the error then has the code
// missing, so that it is ErrNotFound. The ID of the source VIP's endpoint comes from a file, which anybody may have edited.
func (s *service) read(kind, id string, missing Code) (json.RawMessage, error) {
	guid, err := windows.GUIDFromString("{" + id + "}")
	if err != nil {
		return nil, &Error{Call: "HcnOpen" + kind, Code: missing, Detail: fmt.Sprintf("invalid ID %q", id)}
	}
	var handle uintptr
	if err := s.call(nil, "HcnOpen"+kind, uintptr(unsafe.Pointer(&guid)), uintptr(unsafe.Pointer(&handle))); err != nil {
		return nil, err
	}
	return s.queryProperties(kind, handle)
}

// queryProperties returns the document of the object behind a handle, and closes the handle. kind is "Network", "Endpoint"
// or "Namespace".
func (s *service) queryProperties(kind string, handle uintptr) (json.RawMessage, error) {
	defer s.closeHandle("HcnClose"+kind, handle)
	query, err := encodeQuery("")
	if err != nil {
		return nil, err
	}
	var out *uint16
	err = s.call(&out, "HcnQuery"+kind+"Properties", handle, uintptr(unsafe.Pointer(query)), uintptr(unsafe.Pointer(&out)))
	return json.RawMessage(takeText(&out)), err
}

// withNetwork opens the network with this ID, calls f with its handle and closes it. Callers have the ID from HNS, so
// that an invalid one is a mistake, and not a network that is missing.
func (s *service) withNetwork(id string, f func(handle uintptr) error) error {
	guid, err := windows.GUIDFromString("{" + id + "}")
	if err != nil {
		return fmt.Errorf("invalid HNS ID %q", id)
	}
	var handle uintptr
	if err := s.call(nil, "HcnOpenNetwork", uintptr(unsafe.Pointer(&guid)), uintptr(unsafe.Pointer(&handle))); err != nil {
		return err
	}
	defer s.closeHandle("HcnCloseNetwork", handle)
	return f(handle)
}

// closeHandle closes a handle. Errors are ignored, since the caller cannot do anything about them.
func (s *service) closeHandle(name string, handle uintptr) {
	if proc := s.dll.NewProc(name); proc.Find() == nil {
		_, _, _ = proc.Call(handle)
	}
}

// unspecified is E_FAIL.
const unspecified Code = 0x80004005

// require returns an error if the DLL of this Windows lacks an entry point. It must also be called before using hcsshim's
// package hcn, which panics in this case.
func (s *service) require(name string) error {
	if s.dll.NewProc(name).Find() != nil {
		return &Error{Call: name, Code: NoSuchFunction}
	}
	return nil
}

// call calls an entry point with args and, as the last argument, the address of the error record. out is nil, or the
// address of a string that the entry point returns, which args contain, too; after an error, call frees the string.
// The directive keeps what args point to in place, and from being freed, during the call.
//
//go:uintptrescapes
func (s *service) call(out **uint16, name string, args ...uintptr) error {
	if err := s.require(name); err != nil {
		return err
	}
	var text *uint16
	var pinner runtime.Pinner // the slice of arguments hides the address of text from the garbage collector
	pinner.Pin(&text)
	defer pinner.Unpin()
	hr, _, _ := s.dll.NewProc(name).Call(append(args, uintptr(unsafe.Pointer(&text)))...)
	err := hcnError(name, hr, takeText(&text))
	if err != nil && out != nil {
		takeText(out)
	}
	return err
}

// hcnError returns the error for an HRESULT and the text of its error record; nil if the HRESULT means success and there
// is no record. A record with a successful HRESULT is also an error.
func hcnError(name string, hr uintptr, text string) error {
	failed := int32(hr) < 0
	if !failed && text == "" {
		return nil
	}
	var r struct {
		Error     string
		ErrorCode uint32
	}
	if json.Unmarshal([]byte(text), &r) != nil {
		r.Error = text
	}
	if failed { // else the code in the record is the only one
		r.ErrorCode = uint32(hr)
	}
	return &Error{Call: name, Code: cmp.Or(Code(r.ErrorCode), unspecified), Detail: r.Error}
}

// takeText returns a string that HNS allocated and frees it; "" if there is none.
func takeText(text **uint16) string {
	if *text == nil {
		return ""
	}
	s := windows.UTF16PtrToString(*text)
	windows.CoTaskMemFree(unsafe.Pointer(*text))
	*text = nil
	return s
}
