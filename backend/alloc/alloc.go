// Package alloc is the backend that only allocates a subnet for the node and writes
// subnet.env. It makes no paths.
package alloc

import (
	"flannel/backend"
	"flannel/pkg/conf"
	"flannel/pkg/dataplane"
	"flannel/subnet"
)

// Kind is the backend's row in the program's table (cmd/flanneld/backends.go).
func Kind() backend.Kind { return backend.Kind{Name: "alloc", Parse: parse} }

// alloc implements backend.Backend.
type alloc struct{ backend.Plain }

// parse implements backend.Kind.Parse: there are no options.
func parse(*conf.Object, string) backend.Maker {
	return func(n backend.Node) (backend.Backend, []string, error) {
		return alloc{backend.Plain{Node: n, Name: "alloc"}}, nil, nil
	}
}

// Paths implements backend.Backend: somebody else connects the nodes.
func (a alloc) Paths(*subnet.Lease) ([]*dataplane.Path, error) { return nil, nil }

// Wire returns Untyped true: flannel's leases for alloc have no BackendType, ours have.
func (a alloc) Wire() backend.Wire { return backend.Wire{Name: "alloc", Untyped: true} }
