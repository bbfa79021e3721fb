//go:build !linux

package dataplane

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
)

// New refuses: the types and the lowering of this package are for every system, tables to fill there are on Linux only.
func New(Options) (Dataplane, error) {
	return nil, fmt.Errorf("this flanneld cannot program the network of %s yet; run it on Linux", runtime.GOOS)
}

// Cleanup refuses as New does.
func Cleanup(context.Context, *slog.Logger, []netip.Prefix, bool) ([]string, error) {
	_, err := New(Options{})
	return nil, err
}
