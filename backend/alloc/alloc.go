// Package alloc is the backend that only allocates a subnet for the node and writes
// subnet.env. It makes no paths.
package alloc

import (
	"flannel/backend"
	"flannel/pkg/conf"
	"flannel/pkg/dataplane"
	"flannel/subnet"
)

// Kind is the backend's row in the program's table.
func Kind() backend.Kind { return backend.Kind{Name: "alloc", Parse: parse} }

type alloc struct{ node backend.Node }

func parse(*conf.Object, string) backend.Maker {
	return func(n backend.Node) (backend.Backend, []string, error) { return alloc{n}, nil, nil }
}

func (a alloc) Devices(subnet.Lease) []dataplane.Device {
	return []dataplane.Device{a.node.UnderlayDevice()}
}

func (a alloc) Describe(local subnet.Lease, _ dataplane.Links) (subnet.Lease, error) {
	local.Backend = "alloc"
	local.V4.Data, local.V6.Data = nil, nil
	return local, nil
}

func (a alloc) Paths(*subnet.Lease) ([]*dataplane.Path, error) { return nil, nil }

func (a alloc) Wire() backend.Wire { return backend.Wire{Name: "alloc"} }

func (a alloc) MTU() int { return a.node.Underlay.MTU }
