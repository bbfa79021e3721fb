package hns

import (
	"context"
	"slices"

	"flannel/pkg/dataplane"
	"flannel/pkg/hns"
)

// existing drives adapters of the host.
type existing struct{ hostRoutes }

func (existing) ensure(_ context.Context, _ *Driver, dev device, _ bool, adapters []hns.Adapter, links dataplane.Links) error {
	i := slices.IndexFunc(adapters, func(a hns.Adapter) bool { return a.Name == dev.name })
	if i < 0 {
		return waiting(causeNoAdapter, "the adapter to appear")
	}
	host := adapters[i]
	if !host.Virtual() {
		host, _ = hostAdapter(adapters, host, false)
	}
	links[dev.name] = dataplane.Link{Index: host.Index, MAC: host.MAC, MTU: host.MTU}
	return nil
}
