// This file says which packets the tunnels send and receive on the underlay (outer packets),
// so that tunnelAccepted (FL204, firewall.go) can evaluate the host's firewall for them.

package doctor

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"flannel/pkg/doctor/ruleset"
	"flannel/pkg/status"
	"flannel/pkg/underlay"
)

// wireGuardV6 is the device of the wireguard backend for IPv6, if it has one for each family.
const wireGuardV6 = "flannel-wg-v6"

// IP protocol numbers.
const (
	protocolUDP = 17
	protocolESP = 50
)

// namesOfProtocols has what IP protocols without ports are called: in messages, by firewall-cmd, by iptables and nft, and by ufw,
// which knows few protocols. A protocol that is not listed has its number everywhere, and no command of ufw.
var namesOfProtocols = map[int]struct{ message, firewallCmd, rule, ufw string }{
	4:           {" (ipencap)", "ipencap", "4", ""},
	protocolESP: {" (ESP)", "esp", "esp", "esp"},
}

// UDP ports of IKE; the second one is also that of ESP in UDP.
const (
	portIKE    = 500
	portIKENAT = 4500
)

// outer is what a tunnel sends, as a firewall sees it.
type outer struct {
	protocol int
	port     int // 0: the protocol has none
	ipv6     bool
	peers    []netip.Addr // that send and receive such packets; nil: all
}

func (o outer) String() string {
	if o.protocol != protocolUDP {
		return fmt.Sprintf("packets with IP protocol %d%s", o.protocol, namesOfProtocols[o.protocol].message)
	}
	return fmt.Sprintf("packets to UDP port %d", o.port)
}

// accept is the fix for a rule that drops the packets on a device of the underlay. ufw's allow appends a rule, behind
// one that may drop, so its rules are prepended. firewalld's zones are about incoming packets only.
func (o outer) accept(p ruleset.Packet) string {
	word, chain, address, field, ufw, port := "from", "INPUT", "-s", "saddr", "ufw prepend allow", "to any port"
	if p.Path == ruleset.Outgoing {
		word, chain, address, field, ufw, port = "to", "OUTPUT", "-d", "daddr", "ufw prepend allow out", "port"
	}
	what, option := fmt.Sprintf("UDP port %d", o.port), fmt.Sprintf("--add-port=%d/udp", o.port)
	commands := fmt.Sprintf("%s proto udp %s NODES %s %d; or a rule in %s", ufw, word, port, o.port, chain)
	if o.protocol != protocolUDP {
		names, number := namesOfProtocols[o.protocol], strconv.Itoa(o.protocol)
		what, option = fmt.Sprintf("IP protocol %s%s, which has no port,", number, names.message), "--add-protocol="+cmp.Or(names.firewallCmd, number)
		commands = fmt.Sprintf("iptables -I %s -p %s %s NODES -j ACCEPT; with nft: ip %s NODES ip protocol %[2]s accept",
			chain, cmp.Or(names.rule, number), address, field)
		if names.ufw != "" {
			commands = fmt.Sprintf("%s proto %s %s NODES; %s", ufw, names.ufw, word, commands)
		}
	}
	if p.Path == ruleset.Incoming {
		commands = fmt.Sprintf("with firewalld, from everybody in the zone: %s; %s", firewallCmd(zoneOf(p.In), option), commands)
	}
	return fmt.Sprintf("Delete the rule, or before it accept %s %s the other nodes (%s). NODES is their network.", what, word, commands)
}

// zoneOf returns the firewalld zone of a device, for a shell. Of a device without a zone, --get-zone-of-interface
// prints nothing, and --zone= is the default zone, which such a device has.
func zoneOf(device string) string {
	if device == ruleset.AnyDevice {
		return "ZONE"
	}
	return fmt.Sprintf(`"$(firewall-cmd --get-zone-of-interface=%s)"`, device)
}

// firewallCmd returns the command that adds to a firewalld zone, at once and permanently. It does not
// reload, because that discards what others have added at run time.
func firewallCmd(zone, option string) string {
	return fmt.Sprintf("firewall-cmd --zone=%[1]s %[2]s && firewall-cmd --permanent --zone=%[1]s %[2]s", zone, option)
}

// outers returns the packets that flanneld's tunnels send and receive.
func (s Snapshot) outers() (packets []outer) {
	for _, d := range s.tunnels() {
		if t, _ := d.traits(); !t.Keys { // wireguard and ipsec have keys; their packets follow below
			packets = append(packets, outer{protocol: int(t.Protocol), port: cmp.Or(d.Port, int(t.Port)), ipv6: d.OuterIsIPv6})
		}
	}
	n := s.node()
	switch {
	case n == nil || len(packets) > 0: // that is all, or the backend is not known
	case n.Backend == ipsec:
		return s.encrypted(*n)
	case n.Backend == wireGuard:
		return s.authenticated(*n)
	}
	return packets
}

// encrypted returns the packets of the ipsec backend. IKE begins at the first port. If
// it finds NAT, or if Backend.UDPEncap is set, it goes on at the second one, where ESP is
// then sent, too; otherwise ESP is an IP protocol of its own. A peer's endpoint has the
// port that IKE uses.
func (s Snapshot) encrypted(n status.Node) []outer {
	second, noTunnels := []netip.Addr{}, true // second: peers that may need the second port
	for _, p := range s.peersWithPaths() {
		if len(p.Tunnels) == 0 {
			second = append(second, p.PublicIPs...)
		}
		for _, t := range p.Tunnels {
			noTunnels = false
			if t.Handshake.IsZero() || t.Endpoint.Port() == portIKENAT {
				second = append(second, t.Endpoint.Addr())
			}
		}
	}
	packets := []outer{{protocol: protocolUDP, port: portIKE}}
	if !n.UDPEncap {
		packets = append(packets, outer{protocol: protocolESP})
	}
	switch {
	case noTunnels || n.UDPEncap: // all peers may need it
		packets = append(packets, outer{protocol: protocolUDP, port: portIKENAT})
	case len(second) > 0:
		packets = append(packets, outer{protocol: protocolUDP, port: portIKENAT, peers: second})
	}
	return packets
}

// authenticated returns the packets of the wireguard backend. With a device for each
// address family, each has a port and sends by its family. One device for both has one
// port, and sends by the families of the peers' endpoints. The port is in the data of a
// Network, the JSON that this node publishes in its lease.
func (s Snapshot) authenticated(n status.Node) (packets []outer) {
	used := s.endpoints()
	oneForBoth := !hasDevice(n, wireGuardV6) && (len(used) > 0 || len(n.Networks) > 1)
	for _, network := range n.Networks {
		var published struct{ Port int }
		if json.Unmarshal(network.Data, &published) != nil || published.Port <= 0 {
			continue
		}
		for _, ipv6 := range []bool{false, true} {
			sends := network.PublicIP.Is6() == ipv6
			if oneForBoth {
				sends = used[ipv6] != nil
			}
			// A device for both families publishes its port with each.
			known := slices.ContainsFunc(packets, func(o outer) bool { return o.port == published.Port && o.ipv6 == ipv6 })
			if sends && !known {
				packets = append(packets, outer{protocolUDP, published.Port, ipv6, used[ipv6]})
			}
		}
	}
	return packets
}

// endpoints returns the addresses to which tunnels send, by whether they are IPv6.
func (s Snapshot) endpoints() map[bool][]netip.Addr {
	used := map[bool][]netip.Addr{}
	for _, p := range s.report().Peers {
		for _, t := range p.Tunnels {
			if a := t.Endpoint.Addr(); a.IsValid() {
				used[a.Is6()] = append(used[a.Is6()], a)
			}
		}
	}
	return used
}

// tunnelFlows returns the packets of the tunnels, incoming and outgoing.
func (s Snapshot) tunnelFlows() (flows []flow) {
	for _, o := range s.outers() {
		own, others, device := s.ownAddress(o.ipv6), o.peers, s.underlayName()
		if others == nil {
			others = s.peerAddresses(o.ipv6)
		}
		in := ruleset.Packet{Path: ruleset.Incoming, Src: anyAddress(o.ipv6), Dst: own, Protocol: o.protocol, DstPort: o.port, In: device,
			MayBeService: s.mayBeService(own)}
		out := ruleset.Packet{Path: ruleset.Outgoing, Src: own, Dst: anyAddress(o.ipv6), Protocol: o.protocol, DstPort: o.port, Out: device}
		flows = append(flows, flow{what: fmt.Sprintf("incoming %s (%s)", o, familyName(o.ipv6)), packet: in, others: others, fix: o.accept(in)},
			flow{what: fmt.Sprintf("outgoing %s (%s)", o, familyName(o.ipv6)), packet: out, others: others, fix: o.accept(out)})
	}
	return flows
}

// ownAddress returns this node's address in the underlay; all addresses of the
// family if it is not known, or is translated on the way.
func (s Snapshot) ownAddress(ipv6 bool) netip.Prefix {
	for _, n := range s.networks() {
		for _, in := range s.Interfaces.Value.Interfaces {
			for _, a := range in.Addrs {
				if n.PublicIP.IsValid() && a.IP == n.PublicIP && a.IP.Is6() == ipv6 {
					return netip.PrefixFrom(a.IP, a.IP.BitLen())
				}
			}
		}
	}
	return anyAddress(ipv6)
}

// mayBeService reports whether kube-ipvs0, to which kube-proxy's IPVS mode gives the addresses of Services, may have this
// node's own address, too: as an external address of a Service, whose other ports kube-proxy closes. own is of ownAddress.
func (s Snapshot) mayBeService(own netip.Prefix) bool {
	const ofServices = "kube-ipvs0"
	return !s.Interfaces.Known || s.hasAddress(ofServices, func(a netip.Addr) bool {
		ofNode := slices.ContainsFunc(s.Interfaces.Value.Interfaces, func(in underlay.Interface) bool {
			return in.Name != ofServices && s.hasAddress(in.Name, func(other netip.Addr) bool { return other == a })
		})
		return own.Contains(a) && (own.IsSingleIP() || ofNode)
	})
}

// peerAddresses returns the addresses of the other nodes; nil: they are not known.
func (s Snapshot) peerAddresses(ipv6 bool) (addresses []netip.Addr) {
	r := s.report()
	if r == nil {
		return nil
	}
	for _, p := range r.Peers {
		for _, a := range p.PublicIPs {
			if a.IsValid() && a.Is6() == ipv6 {
				addresses = append(addresses, a)
			}
		}
	}
	return addresses
}
