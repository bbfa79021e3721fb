package hns

// Entry points of computenetwork.dll (https://learn.microsoft.com/virtualization/api/hcn/hns_overview) that are called
// without hcsshim, which leaves a network's handle open when HNS refuses the change or the endpoint, and reads the whole
// network after each change. All return an HRESULT; strings are UTF-16, those that come back are freed with
// CoTaskMemFree:
//
//	HcnOpenNetwork(*guid, *handle, *record)
//	HcnModifyNetwork(handle, settings, *record)
//	HcnCreateEndpoint(network's handle, *guid, settings, *handle, *record)
//	HcnQueryEndpointProperties(handle, query, *properties, *record)
//	HcnCloseNetwork(handle), HcnCloseEndpoint(handle)

import (
	"cmp"
	"encoding/json"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/windows"
)

func (s *service) ModifyNetwork(id string, request json.RawMessage) error {
	text, err := windows.UTF16PtrFromString(string(request))
	if err != nil {
		return err
	}
	return s.withNetwork(id, func(handle uintptr) error {
		return s.call(nil, "HcnModifyNetwork", handle, uintptr(unsafe.Pointer(text)))
	})
}

func (s *service) CreateEndpoint(network string, document json.RawMessage) (made json.RawMessage, err error) {
	text, err := windows.UTF16PtrFromString(string(document))
	if err != nil {
		return nil, err
	}
	query, err := windows.UTF16PtrFromString(`{"SchemaVersion":{"Major":2,"Minor":0}}`)
	if err != nil {
		return nil, err
	}
	err = s.withNetwork(network, func(on uintptr) error {
		var id windows.GUID // HNS gives it
		var handle uintptr
		err := s.call(nil, "HcnCreateEndpoint", on, uintptr(unsafe.Pointer(&id)), uintptr(unsafe.Pointer(text)), uintptr(unsafe.Pointer(&handle)))
		if err != nil {
			return err
		}
		defer s.shut("HcnCloseEndpoint", handle)
		var out *uint16
		err = s.call(&out, "HcnQueryEndpointProperties", handle, uintptr(unsafe.Pointer(query)), uintptr(unsafe.Pointer(&out)))
		made = json.RawMessage(take(&out))
		return err
	})
	return made, err
}

// withNetwork opens a network for f.
func (s *service) withNetwork(id string, f func(handle uintptr) error) error {
	guid, err := windows.GUIDFromString("{" + id + "}")
	if err != nil {
		return fmt.Errorf("%q is not an ID of HNS", id)
	}
	var handle uintptr
	if err := s.call(nil, "HcnOpenNetwork", uintptr(unsafe.Pointer(&guid)), uintptr(unsafe.Pointer(&handle))); err != nil {
		return err
	}
	defer s.shut("HcnCloseNetwork", handle)
	return f(handle)
}

// shut closes a handle. That it cannot be closed changes nothing for the caller.
func (s *service) shut(name string, handle uintptr) {
	if proc := s.dll.NewProc(name); proc.Find() == nil {
		_, _, _ = proc.Call(handle)
	}
}

// unspecified is E_FAIL.
const unspecified Code = 0x80004005

// offers is an error where this Windows has no such entry point. There hcsshim panics, so it is asked before that, too.
func (s *service) offers(name string) error {
	if s.dll.NewProc(name).Find() != nil {
		return &Error{Call: name, Code: NoSuchFunction}
	}
	return nil
}

// call calls an entry point whose last argument is the error record; out, if not nil, is where it leaves a text.
//
//go:uintptrescapes
func (s *service) call(out **uint16, name string, args ...uintptr) error {
	if err := s.offers(name); err != nil {
		return err
	}
	var text *uint16
	var stays runtime.Pinner // its address hides in a slice
	stays.Pin(&text)
	defer stays.Unpin()
	hr, _, _ := s.dll.NewProc(name).Call(append(args, uintptr(unsafe.Pointer(&text)))...)
	err := failure(name, hr, take(&text))
	if err != nil && out != nil {
		take(out)
	}
	return err
}

// failure makes an error of an HRESULT and the record that came with it. A record is an error even where the HRESULT
// says otherwise.
func failure(name string, hr uintptr, text string) error {
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
	if failed {
		r.ErrorCode = uint32(hr)
	}
	return &Error{Call: name, Code: cmp.Or(Code(r.ErrorCode), unspecified), Detail: r.Error}
}

// take reads and frees a text that HNS allocated; "" for none.
func take(text **uint16) string {
	if *text == nil {
		return ""
	}
	s := windows.UTF16PtrToString(*text)
	windows.CoTaskMemFree(unsafe.Pointer(*text))
	*text = nil
	return s
}
