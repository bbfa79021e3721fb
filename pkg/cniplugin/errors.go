package cniplugin

import (
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"
)

// Error codes of CNI 1.1 that package types lacks, and our own, which start at 100 by the specification.
const (
	errNotAvailable        uint = 50 // ADD cannot be served
	errLimitedConnectivity uint = 51 // nor can existing pods count on their network

	errSubnetChanged   uint = 100 // CHECK: the pod was made with another subnet or MTU than the node has today
	errEndpointDiffers uint = 101 // CHECK: the HNS endpoint is not as ADD left it
)

// cniError makes an error with a code of CNI. A cause that has a code of its own keeps it, with the text before it.
func cniError(code uint, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	details := ""
	var cause *types.Error
	if errors.As(err, &cause) {
		code, details = cause.Code, cause.Details
		if cause.Details != "" { // Error() of the cause has put them into the text
			return &types.Error{Code: code, Msg: err.Error()}
		}
	}
	return &types.Error{Code: code, Msg: err.Error(), Details: details}
}

// codeOf returns an error's code of CNI, 0 if it has none.
func codeOf(err error) uint {
	var e *types.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return types.ErrUnknown
}
