package api

import (
	"encoding/json"

	"flannel/pkg/windows/hns"
)

// Result codes that package hns does not define (winerror.h). 0 is success.
const (
	// Win32 errors as HRESULTs. The IP Helper calls return their lower 16 bits.
	InvalidHandle hns.Code = win32 | 6
	OutOfMemory   hns.Code = win32 | 14 // also of ports
	WrongDisk     hns.Code = win32 | 34 // HNS refuses to attach an endpoint so (flannel#1112)
	InvalidArg    hns.Code = win32 | 87
	Unreachable   hns.Code = win32 | 1231

	win32 = 0x80070000

	// Codes of HNS.
	invalidEndpoint hns.Code = 0x803b000c
	invalidIP       hns.Code = 0x803b001e
)

// Problem returns the error for a result code, nil for success.
func Problem(call string, code hns.Code) error {
	switch code {
	case 0:
		return nil
	case hns.ObjectExists: // HNS uses its own code
		code = hns.AlreadyExists
	}
	return &hns.Error{Call: call, Code: code}
}

// Record returns the error document that HNS returns beside a code. Its text is
// in another language on purpose.
func Record(code hns.Code) string {
	if code == 0 {
		return ""
	}
	return Text(map[string]any{"Success": false, "Error": "Fehler. ", "ErrorCode": uint32(code)})
}

// Text returns v as JSON.
func Text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return "" // never: all values can be encoded
	}
	return string(b)
}
