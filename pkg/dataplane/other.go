//go:build !linux && !windows

package dataplane

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
)

// New refuses: the types and the lowering of this package are for every system, tables to fill there are on Linux and Windows only.
func New(Options) (Dataplane, error) {
	return nil, fmt.Errorf("this flanneld cannot program the network of %s yet; run it on Linux or Windows", runtime.GOOS)
}

// Cleanup refuses as New does.
func Cleanup(context.Context, Options, []netip.Prefix, bool) ([]string, error) {
	_, err := New(Options{})
	return nil, err
}
