package hnstest

import (
	"encoding/json"

	"flannel/pkg/hns"
)

// Results beyond those that package hns knows (winerror.h); 0 is success.
const (
	addressTaken hns.Code = 0x803b002f

	// Of Win32, as HRESULTs: the IP Helper calls return their low half.
	invalidHandle hns.Code = win32 | 6
	invalidArg    hns.Code = win32 | 87
	tooSmall      hns.Code = win32 | 111 // ERROR_BUFFER_OVERFLOW
	insufficient  hns.Code = win32 | 122 // ERROR_INSUFFICIENT_BUFFER
	unreachable   hns.Code = win32 | 1231
	objectExists  hns.Code = win32 | 5010

	win32 = 0x80070000
)

// problem is nil for success.
func problem(call string, code hns.Code) error {
	switch code {
	case 0:
		return nil
	case objectExists: // which HNS never says
		code = hns.AlreadyExists
	}
	return &hns.Error{Call: call, Code: code}
}

// record is the document that HNS returns beside a code. Its text is in the language of the machine.
func record(code hns.Code) string {
	if code == 0 {
		return ""
	}
	return text(map[string]any{"Success": false, "Error": "Fehler. ", "ErrorCode": uint32(code)})
}

// text is v as JSON.
func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return "" // nothing here holds what JSON cannot say
	}
	return string(b)
}
