package hns

import (
	"cmp"
	"encoding/json"
	"runtime"
	"unsafe"

	"golang.org/x/sys/windows"
)

// record is what HNS says of an error beside its HRESULT, and what the older API answers.
type record struct {
	Success   bool
	Error     string
	ErrorCode uint32
	Output    json.RawMessage
}

// unspecified is E_FAIL.
const unspecified Code = 0x80004005

// call calls an entry point of computenetwork.dll, whose last argument is the error record; out, if not nil, is where
// it leaves a text.
//
//go:uintptrescapes
func (s *service) call(out **uint16, name string, args ...uintptr) error {
	proc := s.network.NewProc(name)
	if proc.Find() != nil {
		return &Error{Call: name, Code: NoSuchFunction}
	}
	var text *uint16
	var stays runtime.Pinner // its address hides in a slice
	stays.Pin(&text)
	defer stays.Unpin()
	hr, _, _ := proc.Call(append(args, uintptr(unsafe.Pointer(&text)))...)
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
	var r record
	if json.Unmarshal([]byte(text), &r) != nil {
		r.Error = text
	}
	if failed {
		r.ErrorCode = uint32(hr)
	}
	return &Error{Call: name, Code: cmp.Or(Code(r.ErrorCode), unspecified), Detail: r.Error}
}

// older makes a request of the API that came before, whose answers are in its own schema; output may be nil.
func (s *service) older(method, path, request string, output any) error {
	name := "HNSCall " + method + " " + path
	proc := s.compute.NewProc("HNSCall")
	if proc.Find() != nil {
		return &Error{Call: name, Code: NoSuchFunction}
	}
	var args [3]*uint16
	for i, text := range []string{method, path, request} {
		var err error
		if args[i], err = windows.UTF16PtrFromString(text); err != nil {
			return err
		}
	}
	var out *uint16
	hr, _, _ := proc.Call(uintptr(unsafe.Pointer(args[0])), uintptr(unsafe.Pointer(args[1])), uintptr(unsafe.Pointer(args[2])),
		uintptr(unsafe.Pointer(&out)))
	text := take(&out)
	if int32(hr) < 0 {
		return &Error{Call: name, Code: Code(uint32(hr))}
	}
	var r record
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return &Error{Call: name, Code: unspecified, Detail: err.Error()}
	}
	if !r.Success {
		return &Error{Call: name, Code: cmp.Or(Code(r.ErrorCode), unspecified), Detail: r.Error}
	}
	if output == nil {
		return nil
	}
	if err := json.Unmarshal(r.Output, output); err != nil {
		return &Error{Call: name, Code: unspecified, Detail: err.Error()}
	}
	return nil
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
