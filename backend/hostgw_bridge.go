package backend

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
	// name is the HNS network's. dns are the pods' DNS servers, as HNS takes them:
	// separated by commas without spaces; "": HNS chooses.
	name, dns string
}

// dnsServers parses addresses separated by commas. It returns "" also after a
// problem, which makes the configuration invalid.
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

// Devices implements Backend. It returns no underlay device: on the HNS
// network's switch, the host's virtual adapter takes the place of the underlay.
func (b bridge) Devices(local subnet.Lease) []dataplane.Device {
	network := dataplane.Network{Parent: b.Underlay.Name, Local: b.Underlay.V4}
	for e := range b.shared(&local) {
		network.Subnets = append(network.Subnets, e.Subnet)
	}
	if !network.Local.IsValid() { // a network without IPv4
		network.Local = b.Underlay.V6
	}
	return []dataplane.Device{{Name: b.name, Kind: dataplane.L2Bridge{Network: network, DNS: b.dns}}}
}

// Paths implements Backend. The paths of hostgw name the physical adapter,
// which has no address once the switch is bound to it. A path through the HNS
// network becomes a route through the adapter that has the host's address then.
func (b bridge) Paths(peer *subnet.Lease) ([]*dataplane.Path, error) {
	paths, err := b.hostgw.Paths(peer)
	for _, path := range paths {
		path.Device = b.name
	}
	return paths, err
}
