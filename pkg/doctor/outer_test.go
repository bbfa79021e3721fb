package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"flannel/internal/test/logtest"
	"flannel/pkg/dataplane"
	"flannel/pkg/doctor/ruleset"
	"flannel/pkg/status"
)

// The fix for a rule that drops the tunnel's packets names what to accept. Only
// protocols that have ports are given one.
func TestFirewallFixes(t *testing.T) {
	ipip := healthy()
	ipip.tunnel("flannel.ipip", "ipip")
	unnamed := healthy() // nothing names the device of the underlay
	unnamed.Daemon = Known(Answer{Problem: "gone"})
	unnamed.changeDevice("flannel.1", func(d *Device) { d.Parent = 0 })
	for _, c := range []struct {
		s        Snapshot
		drop     string
		fix, not string // the first one: what it has, separated by semicolons
	}{
		{healthy(), "INPUT -p udp", `: firewall-cmd --zone="$(firewall-cmd --get-zone-of-interface=eth0)" --add-port=8472/udp && ` +
			`firewall-cmd --permanent --zone="$(firewall-cmd --get-zone-of-interface=eth0)" --add-port=8472/udp; ufw prepend allow proto udp from NODES to any port 8472; or a rule in INPUT`, "--add-protocol"},
		{healthy(), "OUTPUT -p udp", "to the other nodes (ufw prepend allow out proto udp to NODES port 8472; or a rule in OUTPUT", "firewall-cmd"},
		{unnamed, "INPUT -p udp", ": firewall-cmd --zone=ZONE --add-port=8472/udp && firewall-cmd --permanent --zone=ZONE --add-port=8472/udp", "$("},
		{ipip, "INPUT -p 4", "--add-protocol=ipencap; iptables -I INPUT -p 4 -s NODES -j ACCEPT; with nft: ip saddr NODES ip protocol 4 accept", "udp"},
		{ipip, "OUTPUT -p 4", "to the other nodes (iptables -I OUTPUT -p 4 -d NODES -j ACCEPT; with nft: ip daddr NODES ip protocol 4 accept", "firewall-cmd"},
		{encrypted(), "INPUT -p esp", "50 (ESP);--add-protocol=esp; ufw prepend allow proto esp from NODES; iptables -I INPUT -p esp -s NODES ;ip saddr NODES ip protocol esp accept", "udp"},
		{encrypted(), "OUTPUT -p esp", "50 (ESP);(ufw prepend allow out proto esp to NODES; iptables -I OUTPUT -p esp -d NODES ;ip daddr NODES ip protocol esp accept", "firewall-cmd"},
		{encrypted(), "INPUT -p udp --dport 500", "--add-port=500/udp", "--add-protocol"},
	} {
		s := c.s
		s.rules(":INPUT ACCEPT [0:0]", ":OUTPUT ACCEPT [0:0]", "-A "+c.drop+" -j DROP")
		r := find(t, Examine(s), "FL204")
		if r.Verdict != Fail || !logtest.Names(r.Fix, strings.Split(c.fix, ";")...) || logtest.Names(r.Fix, c.not) {
			t.Errorf("%s: %s, the fix is %q, want %q and not %q", c.drop, r.Verdict, r.Fix, c.fix, c.not)
		}
	}

	// firewalld's own rules cannot be deleted.
	s := healthy()
	s.rules(":FORWARD DROP [0:0]")
	reportOf(&s).Node.Networks = append(reportOf(&s).Node.Networks, status.Network{Network: pfx("fd05::/48")})
	if r := find(t, Examine(s), "FL203"); !logtest.Names(r.Fix,
		": firewall-cmd --zone=trusted --add-source=10.5.0.0/16 && firewall-cmd --permanent --zone=trusted --add-source=10.5.0.0/16 && "+
			"firewall-cmd --zone=trusted --add-source=fd05::/48 && firewall-cmd --permanent --zone=trusted --add-source=fd05::/48") {
		t.Errorf("the fix is %q", r.Fix)
	}
}

// A rule is a problem only if packets that ipsec needs are dropped: ESP unless
// Backend.UDPEncap puts it into UDP, and the second port of IKE if that does or if there
// may be NAT.
func TestFirewallsForIPsec(t *testing.T) {
	const esp, ike, nat = "-p esp", "-p udp -m udp --dport 500", "-p udp -m udp --dport 4500"
	none := func(*Snapshot) {}
	inUDP := func(s *Snapshot) { reportOf(s).Node.UDPEncap = true }
	tunnel := func(endpoint string, handshake time.Time) func(*Snapshot) {
		return func(s *Snapshot) {
			reportOf(s).Peers[0].Tunnels = []dataplane.TunnelReport{{Endpoint: netip.MustParseAddrPort(endpoint), Handshake: handshake}}
		}
	}
	noCharon := func(s *Snapshot) {
		for i := range reportOf(s).Peers {
			reportOf(s).Peers[i].Tunnels = nil
		}
	}
	for name, c := range map[string]struct {
		change         func(*Snapshot)
		drop, from     string
		want           Verdict
		names, neither string
	}{
		"nothing dropped":                    {none, "-p sctp", "", OK, "ESP", "4500"},
		"nothing dropped, in UDP":            {inUDP, "-p sctp", "", OK, "4500", "ESP"},
		"ESP":                                {none, esp, "", Fail, "ESP", "UDP"},
		"ESP, in UDP":                        {inUDP, esp, "", OK, "4500", "ESP"},
		"IKE":                                {none, ike, "", Fail, "500", "ESP"},
		"IKE, in UDP":                        {inUDP, ike, "", Fail, "500", "ESP"},
		"IKE's second port, in UDP":          {inUDP, nat, "", Fail, "4500", "ESP"},
		"IKE's second port, without NAT":     {none, nat, "", OK, "ESP", "4500"},
		"IKE's second port, with NAT":        {tunnel("192.168.0.4:4500", noon), nat, "", Fail, "4500", "ESP"},
		"IKE's second port, before any keys": {tunnel("192.168.0.4:500", time.Time{}), nat, "", Fail, "4500", "ESP"},
		"IKE's second port, without charon":  {noCharon, nat, "", Fail, "4500", "ESP"},
		"IKE's second port, of a peer that charon does not know": {func(s *Snapshot) { reportOf(s).Peers[0].Tunnels = nil }, nat, "-s 192.168.0.4", Fail, "4500", "ESP"},
		"from the peer with NAT":                                 {tunnel("192.168.0.4:4500", noon), nat, "-s 192.168.0.4", Fail, "4500", "ESP"},
		"from another peer than that":                            {tunnel("192.168.0.4:4500", noon), nat, "-s 192.168.0.9", OK, "4500", "dropped"},
	} {
		s := encrypted()
		reportOf(&s).Peers = append(reportOf(&s).Peers, status.Peer{Name: "b", State: status.UpToDate, PublicIPs: []netip.Addr{addr("192.168.0.9")},
			Tunnels: []dataplane.TunnelReport{{Endpoint: netip.MustParseAddrPort("192.168.0.9:500"), Handshake: noon}}})
		c.change(&s)
		s.rules(":INPUT ACCEPT [0:0]", "-A INPUT "+c.drop+" "+c.from+" -j DROP")
		if r := find(t, Examine(s), "FL204"); r.Verdict != c.want || !logtest.Names(r.Seen, c.names) || logtest.Names(r.Seen, c.neither) {
			t.Errorf("%s: FL204 is %s, %q, want %s, with %q and without %q", name, r.Verdict, r.Seen, c.want, c.names, c.neither)
		}
	}
}

// A rule is a problem only if it drops packets of the address family, and from the peers,
// that WireGuard's tunnels use.
func TestFirewallsForWireGuard(t *testing.T) {
	const v4, v6 = "192.168.0.4:51820", "[fd00::4]:51820"
	// dual has one device for both families, which sends to these endpoints of a and b.
	dual := func(endpoints ...string) func() Snapshot {
		return func() Snapshot {
			s := wireGuarded()
			r := reportOf(&s)
			r.Node.Networks = append(r.Node.Networks, status.Network{Network: pfx("fd05::/48"), Subnet: pfx("fd05:0:0:3::/64"),
				PublicIP: addr("fd00::3"), Data: r.Node.Networks[0].Data})
			r.Peers = append(r.Peers, status.Peer{Name: "b", State: status.UpToDate})
			for i := range r.Peers {
				r.Peers[i].PublicIPs, r.Peers[i].Tunnels = []netip.Addr{addr(fmt.Sprintf("192.168.0.%d", i+4)), addr(fmt.Sprintf("fd00::%d", i+4))}, nil
				if i < len(endpoints) {
					r.Peers[i].Tunnels = []dataplane.TunnelReport{{Endpoint: netip.MustParseAddrPort(endpoints[i])}}
				}
			}
			return s
		}
	}
	// separate has a device for each family, and a port for each.
	separate := func() Snapshot {
		s := dual()()
		n := reportOf(&s).Node
		n.Devices = append(slices.Clone(n.Devices), status.Device{Name: "flannel-wg-v6", Index: 8, MTU: 1420})
		n.Networks[1].Data = []byte(`{"PublicKey":"x","Port":51821}`)
		return s
	}
	// overIPv6 has pods with IPv4 alone, and reaches a peer by IPv6.
	overIPv6 := func() Snapshot {
		s := wireGuarded()
		reportOf(&s).Peers[0].Tunnels[0].Endpoint = netip.MustParseAddrPort(v6)
		return s
	}
	drop4 := func(match string) func(*Snapshot) {
		return func(s *Snapshot) { s.rules(":INPUT ACCEPT [0:0]", "-A INPUT -p udp -m udp "+match+" -j DROP") }
	}
	drop6 := func(match string) func(*Snapshot) {
		return func(s *Snapshot) {
			s.Linux.IP6Tables = Known([]Listing{{ruleset.VariantNFT, []string{"*filter", ":INPUT ACCEPT [0:0]", "-A INPUT -p udp -m udp " + match + " -j DROP"}}})
		}
	}
	const port, port6 = "--dport 51820", "--dport 51821"
	for name, c := range map[string]struct {
		node   func() Snapshot
		rule   func(*Snapshot)
		want   Verdict
		family string
	}{
		"all by IPv4, IPv4 dropped":         {dual(v4), drop4(port), Fail, "IPv4"},
		"all by IPv4, IPv6 dropped":         {dual(v4), drop6(port), OK, "IPv4"},
		"all by IPv6, IPv6 dropped":         {dual(v6), drop6(port), Fail, "IPv6"},
		"all by IPv6, IPv4 dropped":         {dual(v6), drop4(port), OK, "IPv6"},
		"one by each, IPv4 dropped":         {dual(v6, "192.168.0.5:51820"), drop4(port), Fail, "IPv4"},
		"one by each, IPv6 dropped":         {dual(v6, "192.168.0.5:51820"), drop6(port), Fail, "IPv6"},
		"from a peer's other address":       {dual(v6, "192.168.0.5:51820"), drop4("-s 192.168.0.4 " + port), OK, "IPv4"},
		"from a peer's endpoint":            {dual(v6, "192.168.0.5:51820"), drop4("-s 192.168.0.5 " + port), Fail, "IPv4"},
		"no peers":                          {dual(), drop4(port), Skipped, "family"},
		"two devices, IPv4 dropped":         {separate, drop4(port), Fail, "IPv4"},
		"two devices, IPv6 dropped":         {separate, drop6(port6), Fail, "IPv6"},
		"two devices, IPv4 of the other":    {separate, drop4(port6), OK, "IPv6"},
		"IPv4 pods over IPv6, IPv4 dropped": {overIPv6, drop4(port), OK, "IPv6"},
		"IPv4 pods over IPv6, IPv6 dropped": {overIPv6, drop6(port), Fail, "IPv6"},
	} {
		s := c.node()
		s.Linux.IP6Tables = Known([]Listing{{ruleset.VariantNFT, []string{"*filter"}}})
		c.rule(&s)
		if r := find(t, Examine(s), "FL204"); r.Verdict != c.want || !logtest.Names(r.Seen, c.family) {
			t.Errorf("%s: FL204 is %s, %q, want %s for %s", name, r.Verdict, r.Seen, c.want, c.family)
		}
	}
}
