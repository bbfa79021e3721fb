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

// New refuses: the types are for every system, tables to fill there are on Linux and Windows only.
func New(Options) (dataplane.Dataplane, error) {
	return nil, fmt.Errorf("this flanneld cannot program the network of %s yet; run it on Linux or Windows", runtime.GOOS)
}

// Cleanup refuses as New does.
func Cleanup(context.Context, Options, []netip.Prefix, bool) ([]string, error) {
	_, err := New(Options{})
	return nil, err
}

// Handback refuses: only on Linux do our routes have another form than flannel's.
func Handback(context.Context, Options, []netip.Prefix, bool) ([]string, error) {
	return nil, errors.New("there is nothing to hand back on this system: flannel takes over what flanneld made")
}

// Prepare has nothing to do: making a network takes the host's address away on Windows alone.
func Prepare(context.Context, Options, dataplane.Device, func(error)) (dataplane.Prepared, error) {
	return dataplane.Prepared{}, nil
}
