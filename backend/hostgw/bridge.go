package hostgw

import (
	"net/netip"
	"strings"

	"flannel/pkg/conf"
	"flannel/pkg/dataplane"
	"flannel/subnet"
)

// bridge is host-gw on Windows. The pods' switch is an HNS network on the underlay's
// adapter, and routes lead through the host's virtual adapter.
type bridge struct {
	hostgw
	name, dns string // name of the HNS network, and the pods' DNS servers
}

// dnsServers parses addresses separated by commas.
func dnsServers(o *conf.Object) string {
	list := o.String("DNSServerList", "")
	if list == "" {
		return ""
	}
	var servers []string
	for server := range strings.SplitSeq(list, ",") {
		a, err := netip.ParseAddr(strings.TrimSpace(server))
		if err != nil {
			o.Problem("DNSServerList", "%.40q is not an IP address; use addresses separated by commas", server)
			return ""
		}
		servers = append(servers, a.String())
	}
	return strings.Join(servers, ",")
}

func (b bridge) Devices(local subnet.Lease) []dataplane.Device {
	network := dataplane.Network{Parent: b.Underlay.Name, Local: b.Underlay.V4}
	for e := range b.Shared(&local) {
		network.Subnets = append(network.Subnets, e.Subnet)
	}
	if !network.Local.IsValid() {
		network.Local = b.Underlay.V6
	}
	return []dataplane.Device{{Name: b.name, Kind: dataplane.L2Bridge{Network: network, DNS: b.dns}}}
}

func (b bridge) Paths(peer *subnet.Lease) ([]*dataplane.Path, error) {
	paths, err := b.hostgw.Paths(peer)
	for _, path := range paths {
		path.Device = b.name
	}
	return paths, err
}
