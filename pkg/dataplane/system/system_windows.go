package system

import (
	"context"
	"errors"
	"net/netip"

	"flannel/pkg/dataplane"
	"flannel/pkg/dataplane/hns"
)

// New opens HNS and the IP stack and begins to watch them. The caller closes it.
func New(o Options) (dataplane.Dataplane, error) { return hns.Open(o) }

// What the commands of an administrator do.
var (
	Cleanup = hns.Cleanup
	Prepare = hns.Prepare
)

// Handback refuses: only on Linux do our routes have another form than flannel's.
func Handback(context.Context, Options, []netip.Prefix, bool) ([]string, error) {
	return nil, errors.New("there is nothing to hand back on this system: flannel takes over what flanneld made")
}
