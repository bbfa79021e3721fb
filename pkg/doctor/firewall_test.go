package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"flannel/pkg/doctor/ruleset"
	"flannel/pkg/status"
	"flannel/pkg/underlay"
)

// nftBase is a base chain in the form of nft -j, with rules after it.
func nftBase(hook, policy string, rules ...string) string {
	text := fmt.Sprintf(`{"nftables":[{"chain":{"family":"inet","table":"mine","name":"c","hook":%q,"prio":0,"policy":%q}}`, hook, policy)
	for i, r := range rules {
		text += fmt.Sprintf(`,{"rule":{"family":"inet","table":"mine","chain":"c","handle":%d,"expr":[%s]}}`, i+7, r)
	}
	return text + "]}"
}

const (
	dropPort   = `{"match":{"op":"==","left":{"payload":{"protocol":"udp","field":"dport"}},"right":8472}},{"drop":null}`
	acceptPort = `{"match":{"op":"==","left":{"payload":{"protocol":"udp","field":"dport"}},"right":{"set":[53,{"range":[8400,8500]}]}}},{"accept":null}`
	fromBridge = `{"match":{"op":"==","left":{"meta":{"key":"iifname"}},"right":"cni0"}},{"accept":null}`
	toBridge   = `{"match":{"op":"==","left":{"meta":{"key":"oifname"}},"right":"cni0"}},{"accept":null}`
	blocked    = `{"match":{"op":"==","left":{"payload":{"protocol":"ip","field":"saddr"}},"right":{"set":["192.168.0.5"]}}},{"drop":null}`
	extension  = `{"xt":{"type":"match","name":"string"}},{"drop":null}`
)

// misprinted is what nft -j prints of "-A FORWARD -j DROP" and of our jump, which has a comment.
const misprinted = `{"nftables":[{"set":{"family":"ip","name":"bad","table":"filter","elem":["192.0.2.1"]}},
	{"chain":{"family":"ip","table":"filter","name":"FORWARD","hook":"forward","prio":0,"policy":"accept"}},
	{"rule":{"family":"ip","table":"filter","chain":"FORWARD","handle":4,"expr":[
		{"match":{"op":"==","left":{"payload":{"protocol":"ip","field":"daddr"}},"right":"@bad"}},{"drop":null}]}},
	{"rule":{"family":"ip","table":"filter","chain":"FORWARD","handle":5,"expr":[
		{"xt":{"type":"match","name":"comment"}},{"jump":{"target":"FLANNEL-FWD"}}]}}]}`

// TestFirewalls has rules that hosts have, and what the checks make of them. How
// single conditions are evaluated is tested in package ruleset.
func TestFirewalls(t *testing.T) {
	const jump = "-A FORWARD -j FLANNEL-FWD"
	ours := []string{":FLANNEL-FWD - [0:0]", "-A FLANNEL-FWD -s 10.5.0.0/16 -j ACCEPT", "-A FLANNEL-FWD -d 10.5.0.0/16 -j ACCEPT"}
	for _, c := range []struct {
		name    string
		code    string
		verdict Verdict
		rules   []string // of iptables' table filter, beside ours
		nft     string
	}{
		{"Docker's policy, without our jump", "FL203", Fail, []string{":FORWARD DROP [0:0]"}, ""},
		{"Docker's policy", "FL203", OK, []string{":FORWARD DROP [0:0]", jump}, ""},
		{"RHEL's reject before our jump", "FL203", Fail, []string{":FORWARD ACCEPT [0:0]", "-A FORWARD -j REJECT --reject-with icmp-host-prohibited", jump}, ""},
		{"RHEL's reject after our jump", "FL203", OK, []string{":FORWARD ACCEPT [0:0]", jump, "-A FORWARD -j REJECT --reject-with icmp-host-prohibited"}, ""},
		{"a comment that looks like a rule", "FL203", OK, []string{":FORWARD ACCEPT [0:0]", `-A FORWARD -m comment --comment "was \"x\" -j DROP" -j ACCEPT`, jump}, ""},
		{"DROP for one interface only", "FL203", OK, []string{":FORWARD ACCEPT [0:0]", "-A FORWARD -i eth1 -j DROP", jump}, ""},
		{"DROP from our tunnel only", "FL203", Fail, []string{":FORWARD ACCEPT [0:0]", "-A FORWARD -i flannel+ -j DROP", jump}, ""},
		{"a network policy", "FL203", OK, []string{":FORWARD ACCEPT [0:0]", "-A FORWARD -d 10.5.3.7/32 -p tcp -j DROP", jump}, ""},
		{"a network policy with a set", "FL203", OK, []string{":FORWARD ACCEPT [0:0]", "-A FORWARD -d 10.5.3.7/32 -m set --match-set x src -j DROP", jump}, ""},
		{"a network policy with a set, before RHEL's reject", "FL203", Fail, []string{":FORWARD ACCEPT [0:0]", ":fw - [0:0]", "-A FORWARD -d 10.5.3.7/32 -j fw",
			"-A fw -m set --match-set x src -j DROP", "-A FORWARD -j REJECT", jump}, ""},
		{"firewalld's reject behind ICMP", "FL203", Warn, []string{":FORWARD ACCEPT [0:0]", ":FWDI_public - [0:0]", "-A FORWARD -j FWDI_public",
			"-A FWDI_public -p icmp -j ACCEPT", "-A FORWARD -j REJECT --reject-with icmp-host-prohibited", jump}, ""},
		{"a queue for all pods", "FL203", Undecided, []string{":FORWARD ACCEPT [0:0]", "-A FORWARD -j NFQUEUE --queue-num 1", jump}, ""},
		{"a set of nft that iptables does not print", "FL203", OK, []string{":FORWARD ACCEPT [0:0]", "-A FORWARD -j DROP", jump}, misprinted},
		{"another table drops", "FL203", Fail, []string{":FORWARD ACCEPT [0:0]", jump}, nftBase("forward", "drop")},
		{"another table accepts one direction", "FL203", Fail, nil, nftBase("forward", "drop", fromBridge)},
		{"another table accepts both directions", "FL203", OK, nil, nftBase("forward", "drop", fromBridge, toBridge)},

		{"port dropped by nftables with policy accept", "FL204", Fail, nil, nftBase("input", "accept", dropPort)},
		{"port dropped by nftables in output", "FL204", Fail, nil, nftBase("output", "accept", dropPort)},
		{"port accepted by nftables in a range", "FL204", OK, nil, nftBase("input", "drop", acceptPort)},
		{"policy drop of nftables", "FL204", Fail, nil, nftBase("input", "drop")},
		{"one peer dropped", "FL204", Fail, nil, nftBase("input", "accept", blocked)},
		{"an extension of iptables in nftables", "FL204", Undecided, nil, nftBase("input", "accept", extension)},
		{"a set of iptables", "FL204", Undecided, []string{":INPUT ACCEPT [0:0]", "-A INPUT -m set --match-set x src -j DROP"}, ""},
		{"a set of iptables for one peer", "FL204", Undecided, []string{":INPUT ACCEPT [0:0]", "-A INPUT -s 192.168.0.5/32 -m set --match-set x dst -j DROP"}, ""},
		{"a set of iptables for another address", "FL204", OK, []string{":INPUT ACCEPT [0:0]", "-A INPUT -s 192.168.0.9/32 -m set --match-set x dst -j DROP"}, ""},
		{"a set of iptables, but another rule drops", "FL204", Fail, []string{":INPUT DROP [0:0]", "-A INPUT -m set --match-set x src -j DROP"}, ""},
		{"a rate", "FL204", Warn, []string{":INPUT DROP [0:0]", "-A INPUT -p udp -m limit --limit 5/sec -j ACCEPT"}, ""},
		{"a rate, but another rule drops", "FL204", Fail, []string{":INPUT DROP [0:0]", "-A INPUT -p udp -m limit --limit 5/sec -j ACCEPT",
			":OUTPUT ACCEPT [0:0]", "-A OUTPUT -p udp -m udp --dport 8472 -j DROP"}, ""},
		{"not nft's output", "FL204", Undecided, nil, "table inet x {}"},
		{"policy DROP, port accepted in another chain", "FL204", OK, []string{":INPUT DROP [0:0]", ":ufw-user-input - [0:0]", "-A INPUT -j ufw-user-input", "-A ufw-user-input -s 192.168.0.0/24 -p udp -m udp --dport 8472 -j ACCEPT"}, ""},
		{"policy DROP, port accepted from elsewhere", "FL204", Fail, []string{":INPUT DROP [0:0]", "-A INPUT -s 192.168.9.0/24 -p udp -m udp --dport 8472 -j ACCEPT"}, ""},
	} {
		s := healthy()
		s.rules(append(slices.Clone(ours), c.rules...)...)
		if c.nft != "" {
			s.Linux.NFTables = Known(c.nft)
		}
		reportOf(&s).Peers = append(reportOf(&s).Peers, status.Peer{Name: "b", State: status.UpToDate, PublicIPs: []netip.Addr{addr("192.168.0.5")}})
		if r := find(t, Examine(s), c.code); r.Verdict != c.verdict {
			t.Errorf("%s: %s is %s, %q, want %s", c.name, c.code, r.Verdict, r.Seen, c.verdict)
		}
	}
}

// What is not known of the rules makes the result unknown, unless the rest has a
// problem.
func TestUnknownRules(t *testing.T) {
	checkAll(t, healthy, []testCase{
		{"FL203", Undecided, "no-tool", func(s *Snapshot) { s.Linux.IPTables = Unknown[[]Listing]("no-tool") }},
		{"FL203", OK, "10.5.3.7", func(s *Snapshot) { s.rules(":FORWARD ACCEPT [0:0]", "-A FORWARD -d 10.5.3.7/32 -j DROP") }},
		{"FL203", OK, "", func(s *Snapshot) { s.Linux.IP6Tables = Unknown[[]Listing]("no-tool") }}, // not in use
		{"FL204", Undecided, "no-tool", func(s *Snapshot) { s.Linux.NFTables = Unknown[string]("no-tool") }},
		{"FL204", Fail, "8472", func(s *Snapshot) {
			s.Linux.NFTables = Unknown[string]("no-tool")
			s.rules(":INPUT DROP [0:0]")
		}},
		{"FL203", Fail, "FORWARD", func(s *Snapshot) { // a packet must pass the tables of both variants
			s.Linux.IPTables.Value = append(s.Linux.IPTables.Value, Listing{ruleset.VariantLegacy, []string{"*filter", ":FORWARD DROP [0:0]"}})
		}},
	})
}

// With DirectRouting, pods' packets pass the underlay, too.
func TestFirewallsForDirectRouting(t *testing.T) {
	direct := func(s *Snapshot, nft string) {
		s.Linux.Paths.Value = append(s.Linux.Paths.Value, Path{Peer: "b", Subnet: pfx("10.5.5.0/24"), Kind: PathDirect, Device: "eth0"})
		s.Linux.NFTables = Known(nft)
	}
	fromTunnel := strings.ReplaceAll(fromBridge, "cni0", "flannel.1")
	unread := func(s *Snapshot) { s.Linux.Paths = Unknown[[]Path]("unread") }
	gone := func(s *Snapshot) { s.Daemon = Known(Answer{Problem: "gone"}) }
	checkAll(t, healthy, []testCase{
		{"FL203", Fail, "eth0", func(s *Snapshot) { direct(s, nftBase("forward", "drop", fromBridge, fromTunnel)) }},
		{"FL203", OK, "", func(s *Snapshot) { direct(s, nftBase("forward", "drop", fromBridge, toBridge)) }},
		{"FL203", OK, "", func(s *Snapshot) { s.Linux.NFTables = Known(nftBase("forward", "drop", fromBridge, fromTunnel)) }},
		{"FL203", Undecided, "unread", unread},
		{"FL203", Fail, "flannel.1", func(s *Snapshot) { unread(s); s.rules(":FORWARD DROP [0:0]") }},
		{"FL203", Undecided, "the daemon does not answer", gone},
		{"FL203", Fail, "flannel.1", func(s *Snapshot) { gone(s); s.rules(":FORWARD DROP [0:0]") }},
		{"FL203", Undecided, "no-directory", func(s *Snapshot) { s.foreign(); s.CNI = Unknown[CNI]("no-directory") }}, // any bridge may be the pods'
		{"FL203", OK, "eth0", func(s *Snapshot) { // host-gw, without a tunnel
			unread(s)
			n := reportOf(s).Node
			n.Backend, n.Devices = "host-gw", n.Devices[:1]
		}},
	})
}

// Docker with this node's subnet reads no CNI configuration. Its rules name its bridge.
func TestFirewallsForDocker(t *testing.T) {
	rules := func(s *Snapshot, ofDocker ...string) {
		s.changeDevice("cni0", func(d *Device) { d.Name = "docker0" })
		s.Interfaces.Value.Interfaces[1].Name = "docker0"
		s.files()
		s.rules(append(ofDocker, ":FORWARD DROP [0:0]", ":DOCKER - [0:0]", ":FLANNEL-FWD - [0:0]", "-A FORWARD -i docker0 -j ACCEPT",
			"-A FORWARD -o docker0 -j DOCKER", "-A FORWARD -j FLANNEL-FWD", "-A FLANNEL-FWD -d 10.5.0.0/16 -j ACCEPT")...)
	}
	const drop, port = "-A DOCKER ! -i docker0 -o docker0 -j DROP", "-A DOCKER -d 10.5.3.2/32 ! -i docker0 -o docker0 -p tcp -m tcp --dport 80 -j ACCEPT"
	user := []string{":DOCKER-USER - [0:0]", "-A FORWARD -j DOCKER-USER", "-A DOCKER-USER -s 10.5.0.0/16 -d 10.5.3.0/24 -j ACCEPT", port, drop} // of install.md
	raw := func(bridge string) []string {
		return []string{"*raw", ":PREROUTING ACCEPT [0:0]", "-A PREROUTING -d 10.5.3.2/32 ! -i " + bridge + " -j DROP", "*filter"}
	}
	// As Docker's backend nftables has it.
	const rawNFT = `{"match":{"op":"==","left":{"payload":{"protocol":"ip","field":"daddr"}},"right":"10.5.3.2"}},
		{"match":{"op":"!=","left":{"meta":{"key":"iifname"}},"right":"docker0"}},{"counter":{"packets":0,"bytes":0}},{"drop":null}`
	checkAll(t, healthy, []testCase{
		{"FL203", OK, "", func(s *Snapshot) { rules(s) }},
		{"FL203", Fail, "flannel.1 DOCKER", func(s *Snapshot) { rules(s, drop) }},
		{"FL203", Fail, "flannel.1 DOCKER", func(s *Snapshot) { // a configuration that no runtime uses
			files := s.CNI.Value.Files
			rules(s, drop)
			s.files(files...)
		}},
		{"FL203", Warn, "flannel.1 DOCKER", func(s *Snapshot) { rules(s, port, drop) }},
		{"FL203", OK, "", func(s *Snapshot) { rules(s, user...) }},
		{"FL203", Warn, "flannel.1 raw", func(s *Snapshot) { rules(s, append(raw("docker0"), user...)...) }},
		{"FL203", Warn, "flannel.1 10.5.3.2", func(s *Snapshot) {
			rules(s, user...)
			s.Linux.NFTables = Known(nftBase("prerouting", "accept", rawNFT))
		}},
		{"FL203", OK, "", func(s *Snapshot) { // docker0 has an address of the other family's subnet only
			rules(s, drop)
			s.onBridge("fd05::1/64")
			n := reportOf(s).Node
			n.Networks = append(n.Networks, status.Network{Network: pfx("fd05::/48"), Subnet: pfx("fd05::/64")})
			s.Linux.IP6Tables = Known[[]Listing](nil)
		}},
		{"FL203", OK, "", func(s *Snapshot) { // it has a network of its own
			rules(s, drop)
			s.onBridge("172.17.0.1/16")
		}},
		{"FL203", Undecided, "unread", func(s *Snapshot) {
			rules(s, drop)
			s.Interfaces = Unknown[underlay.Snapshot]("unread")
		}},
	})
}

// Pods without a bridge: a bridge that was left behind is not taken for their device. A rule for devices may be about all.
func TestFirewallsWithoutBridge(t *testing.T) {
	rules := func(s *Snapshot, devices string) {
		s.files(CNIFile{"10-flannel.conf", `{"type":"flannel","delegate":{"type":"ptp"}}`})
		s.rules(":FORWARD DROP [0:0]", "-A FORWARD -i "+devices+" -j ACCEPT", "-A FORWARD -o "+devices+" -j ACCEPT")
	}
	checkAll(t, healthy, []testCase{
		{"FL203", Undecided, "FORWARD", func(s *Snapshot) { rules(s, "cni0") }},
		{"FL203", Undecided, "FORWARD", func(s *Snapshot) { rules(s, "lxc+") }},
		{"FL203", OK, "", func(s *Snapshot) { rules(s, "+") }},
	})
}

// kube-proxy in IPVS mode closes the ports of addresses that its device has. One may be the node's own.
func TestFirewallsForIPVS(t *testing.T) {
	services := func(s *Snapshot, addrs ...string) {
		in := underlay.Interface{Name: "kube-ipvs0", Index: 20}
		for _, a := range addrs {
			in.Addrs = append(in.Addrs, underlay.Addr{IP: addr(a), Host: true})
		}
		eth0 := &s.Interfaces.Value.Interfaces[0]
		eth0.Addrs = []underlay.Addr{{IP: addr("192.168.0.3")}}
		s.Interfaces.Value.Interfaces = append(s.Interfaces.Value.Interfaces, in)
		s.rules(":INPUT ACCEPT [0:0]", "-A INPUT -m conntrack --ctstate NEW -m set --match-set KUBE-IPVS-IPS dst -j REJECT")
	}
	natted := func(s *Snapshot) { reportOf(s).Node.Networks[0].PublicIP = addr("192.0.2.3") }
	checkAll(t, healthy, []testCase{
		{"FL204", OK, "", func(s *Snapshot) { services(s, "10.96.0.1") }},
		{"FL204", OK, "", func(s *Snapshot) { natted(s); services(s, "10.96.0.1") }},
		{"FL204", Undecided, "KUBE-IPVS-IPS", func(s *Snapshot) { services(s, "10.96.0.1", "192.168.0.3") }},
		{"FL204", Undecided, "KUBE-IPVS-IPS", func(s *Snapshot) { natted(s); services(s, "192.168.0.3") }},
		{"FL204", Undecided, "KUBE-IPVS-IPS", func(s *Snapshot) { natted(s); services(s, "192.0.2.3") }},
		{"FL204", Undecided, "KUBE-IPVS-IPS", func(s *Snapshot) {
			services(s)
			s.Interfaces = Unknown[underlay.Snapshot]("unread")
		}},
	})
}

// The packets of an IPIP tunnel have a protocol of their own, and no port.
func TestFirewallsForIPIP(t *testing.T) {
	s := healthy()
	s.tunnel("flannel.ipip", "ipip")
	for rules, want := range map[string]Verdict{
		":INPUT ACCEPT [0:0]\n-A INPUT -p ipencap -j DROP":                            Fail,
		":INPUT ACCEPT [0:0]\n-A INPUT -p 4 -j REJECT":                                Fail,
		":INPUT ACCEPT [0:0]\n-A INPUT -p udp -j DROP":                                OK,
		":INPUT DROP [0:0]\n-A INPUT -p udp -j ACCEPT":                                Fail,
		":INPUT DROP [0:0]\n-A INPUT -s 192.168.0.4 -p ipv4 -j ACCEPT":                OK,
		":INPUT ACCEPT [0:0]\n-A INPUT -p ipencap -j ACCEPT\n-A INPUT -j DROP":        OK,
		":OUTPUT ACCEPT [0:0]\n-A OUTPUT -p ipencap -j DROP":                          Fail,
		":OUTPUT ACCEPT [0:0]\n-A OUTPUT -p ipencap -d 192.168.0.9 -o eth0 -j ACCEPT": OK,
	} {
		s.rules(strings.Split(rules, "\n")...)
		if r := find(t, Examine(s), "FL204"); r.Verdict != want {
			t.Errorf("%s: FL204 is %s, %q, want %s", rules, r.Verdict, r.Seen, want)
		}
	}
	check(t, s, "FL205", Skipped, "")
}
