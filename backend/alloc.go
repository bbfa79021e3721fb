package backend

import (
	"flannel/pkg/conf"
	"flannel/pkg/dataplane"
	"flannel/subnet"
)

// alloc is the backend that only allocates a subnet for the node and writes subnet.env.
// It makes no paths.
type alloc struct{ plain }

// parseAlloc implements Kind.Parse: there are no options.
func parseAlloc(*conf.Object, string) Maker {
	return func(n Node) (Backend, []string, error) {
		return alloc{plain{Node: n, Name: "alloc"}}, nil, nil
	}
}

// Paths implements Backend: somebody else connects the nodes.
func (a alloc) Paths(*subnet.Lease) ([]*dataplane.Path, error) { return nil, nil }

// Wire returns Untyped true: flannel's leases for alloc have no BackendType, ours have.
func (a alloc) Wire() Wire { return Wire{Name: "alloc", Untyped: true} }
