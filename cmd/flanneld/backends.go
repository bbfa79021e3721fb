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

// backends returns the kinds of backend that Backend.Type can name. A new
// backend needs one package and one entry here.
func backends() netconf.Backends {
	return netconf.Backends{vxlan.Kind(), hostgw.Kind(), alloc.Kind()}
}

// parseConfig validates a raw network configuration for this node. It is the
// Parse of daemon.Daemon, with results as of netconf.Backends.Parse.
func parseConfig(raw []byte) (subnet.Config, backend.Maker, []string, error) {
	return backends().Parse(runtime.GOOS, raw)
}
