//go:build !linux && !windows

package system

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"

	"flannel/pkg/dataplane"
)

// New returns an error: there are drivers for Linux and Windows only.
func New(Options) (dataplane.Dataplane, error) {
	return nil, fmt.Errorf("this flanneld cannot program the network of %s yet; run it on Linux or Windows", runtime.GOOS)
}

// Cleanup returns the error of New.
func Cleanup(context.Context, Options, []netip.Prefix, bool) ([]string, error) {
	_, err := New(Options{})
	return nil, err
}

// Handback returns an error.
func Handback(context.Context, Options, []netip.Prefix, bool) ([]string, error) {
	return nil, errors.New("there is nothing to hand back on this system: flannel adopts what flanneld made")
}

// Prepare does nothing: the host's address moves on Windows only.
func Prepare(context.Context, Options, dataplane.Device, func(error)) (dataplane.Prepared, error) {
	return dataplane.Prepared{}, nil
}
