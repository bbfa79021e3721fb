package api

import (
	"encoding/json"

	"flannel/pkg/hns"
)

// Results beyond those that package hns knows (winerror.h); 0 is success.
const (
	AddressTaken hns.Code = 0x803b002f

	// Of Win32, as HRESULTs: the IP Helper calls return their low half.
	InvalidHandle hns.Code = win32 | 6
	InvalidArg    hns.Code = win32 | 87
	Unreachable   hns.Code = win32 | 1231

	win32 = 0x80070000
)

// Problem is the error of a result: nil for success.
func Problem(call string, code hns.Code) error {
	switch code {
	case 0:
		return nil
	case hns.ObjectExists: // which HNS never says
		code = hns.AlreadyExists
	}
	return &hns.Error{Call: call, Code: code}
}

// Record is the document that HNS returns beside a code. Its text is in the language of the machine.
func Record(code hns.Code) string {
	if code == 0 {
		return ""
	}
	return Text(map[string]any{"Success": false, "Error": "Fehler. ", "ErrorCode": uint32(code)})
}

// Text is v as JSON.
func Text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return "" // nothing here holds what JSON cannot say
	}
	return string(b)
}
