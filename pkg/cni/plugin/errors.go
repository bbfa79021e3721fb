package plugin

import (
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"
)

// Error codes of CNI 1.1 that package types does not define, and codes of this
// plugin. The specification reserves codes from 100 for plugins.
const (
	errNotAvailable        uint = 50 // STATUS: ADD cannot succeed
	errLimitedConnectivity uint = 51 // STATUS: ADD cannot succeed, and existing pods may lack connectivity

	errSubnetChanged   uint = 100 // CHECK: the subnets or MTU of the node changed after ADD
	errEndpointDiffers uint = 101 // CHECK: the HNS endpoint is missing or was modified after ADD
	errFormerBridge    uint = 102 // ADD: the pods' bridge has an address of another subnet
)

// cniError returns an error with a CNI error code. If it wraps a CNI error, the
// code of that one is used instead.
func cniError(code uint, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	var cause *types.Error
	if errors.As(err, &cause) {
		code = cause.Code
	}
	return &types.Error{Code: code, Msg: err.Error()} // includes the details of the cause
}

// codeOf returns the CNI error code of an error, 0 if it has none.
func codeOf(err error) uint {
	var e *types.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return types.ErrUnknown
}
