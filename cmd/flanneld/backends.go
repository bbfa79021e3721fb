package main

import (
	"runtime"

	"flannel/backend"
	"flannel/backend/alloc"
	"flannel/backend/hostgw"
	"flannel/backend/vxlan"
	"flannel/pkg/netconf"
	"flannel/subnet"
)

// backends is the table of what Backend.Type may name. A new backend is one package and one line here.
func backends() netconf.Backends {
	return netconf.Backends{vxlan.Kind(), hostgw.Kind(), alloc.Kind()}
}

// parseConfig validates a raw network configuration for this node.
func parseConfig(raw []byte) (subnet.Config, backend.Maker, []string, error) {
	return backends().Parse(runtime.GOOS, raw)
}
