package main

import (
	"runtime"

	"flannel/backend"
	"flannel/backend/alloc"
	"flannel/backend/extension"
	"flannel/backend/hostgw"
	"flannel/backend/ipip"
	"flannel/backend/ipsec"
	"flannel/backend/udp"
	"flannel/backend/vxlan"
	"flannel/backend/wireguard"
	"flannel/pkg/conf/netconf"
	"flannel/subnet"
)

// backends returns the kinds of backend that Backend.Type can name. A new
// backend needs one package and one entry here.
func backends() netconf.Backends {
	return netconf.Backends{
		vxlan.Kind(), wireguard.Kind(), hostgw.Kind(), ipip.Kind(), ipsec.Kind(), udp.Kind(), extension.Kind(), alloc.Kind(),
		{Name: "tencent-vpc", Refused: "it makes routes by the API of Tencent Cloud, where this program has not been tested"},
	}
}

// parseConfig validates a raw network configuration for this node. It is the
// Parse of daemon.Daemon, with results as of netconf.Backends.Parse.
func parseConfig(raw []byte) (subnet.Config, backend.Maker, []string, error) {
	return backends().Parse(runtime.GOOS, raw)
}
