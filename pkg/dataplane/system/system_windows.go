package system

import (
	"context"
	"errors"
	"net/netip"

	"flannel/pkg/dataplane"
	"flannel/pkg/dataplane/extension"
	"flannel/pkg/windows"
)

// New opens HNS and the IP stack and starts to watch them. The caller closes it.
func New(o Options) (dataplane.Dataplane, error) {
	d, err := windows.Open(o)
	if err != nil {
		return nil, err
	}
	return extension.New(d, o), nil
}

// The functions of the commands cleanup and prepare.
var (
	Cleanup = windows.Cleanup
	Prepare = windows.Prepare
)

// Handback returns an error: on Windows, our routes have the form of flannel's.
func Handback(context.Context, Options, []netip.Prefix, bool) ([]string, error) {
	return nil, errors.New("there is nothing to hand back on this system: flannel adopts what flanneld made")
}
