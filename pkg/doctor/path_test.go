package doctor

import (
	"slices"
	"strings"
	"testing"
)

// working returns the evidence of a healthy path through VXLAN.
func working() Path {
	seen := func() PathTest {
		return PathTest{Result: Answered, Left: []string{"flannel.1", "eth0"}, Arrived: []string{"eth0", "flannel.1"}}
	}
	return Path{Peer: "a", Subnet: pfx("10.5.4.0/24"), PublicIP: addr("192.168.0.4"), Expected: true,
		Kind: "vxlan", Device: "flannel.1", Underlay: "eth0", MTU: 1450, Port: 8472, Overhead: 50,
		Host: PathTest{Result: Answered}, Neighbour: NeighbourUp, Inner: seen(), Full: PathTest{Result: Answered},
		PublishedMAC: "02:00:00:00:00:04", AnswerMAC: "02:00:00:00:00:04", Frame: seen(), Broadcast: seen(), ARP: seen(), TCP: seen(), FrameTCP: seen()}
}

// lost is a packet that left, and was not answered.
var lost = PathTest{Result: Silent, Left: []string{"flannel.1", "eth0"}}

// silence makes the peer answer nothing of the tunnel.
func (p *Path) silence() {
	p.Inner, p.Full, p.Frame, p.Broadcast, p.ARP, p.TCP, p.FrameTCP, p.AnswerMAC = lost, lost, lost, lost, lost, lost, lost, ""
}

// directly makes it a path of host-gw.
func (p *Path) directly() {
	answered := PathTest{Result: Answered, Left: []string{"eth0"}, Arrived: []string{"eth0"}}
	*p = Path{Peer: "a", Subnet: p.Subnet, PublicIP: p.PublicIP, Expected: true, Kind: PathDirect, Device: "eth0", Underlay: "eth0",
		MTU: 1500, Host: PathTest{Result: Answered}, Inner: answered, OfPod: answered, Full: PathTest{Result: Answered}}
}

// keyed makes it a path of WireGuard whose peer does not answer.
func (p *Path) keyed() {
	*p = Path{Peer: "a", Subnet: p.Subnet, PublicIP: p.PublicIP, Expected: true, Kind: wireGuard, Device: "flannel-wg", Underlay: "eth0",
		MTU: 1420, Port: 51820, Overhead: 80, Host: PathTest{Result: Answered}, Inner: PathTest{Result: Silent, Left: []string{"flannel-wg"}}}
}

// TestDiagnose has the evidence of each cause, and evidence that looks like it and is
// not enough.
func TestDiagnose(t *testing.T) {
	outside := PathTest{Result: Silent, Left: []string{"eth0"}}
	for _, c := range []struct {
		name   string
		want   Cause
		change func(*Path)
	}{
		{"healthy", "", func(*Path) {}},
		{"not tested", "", func(p *Path) { p.silence(); p.Problem = "no packet sockets" }},
		{"TCP dropped by the peer's firewall", "", func(p *Path) { p.TCP, p.FrameTCP = lost, lost }},
		{"TCP dropped by this node's firewall", "", func(p *Path) { p.TCP = PathTest{Result: Silent, Left: []string{"flannel.1"}} }},
		{"Windows, not asked for", "", func(p *Path) { p.silence(); p.Expected, p.PublishedMAC = false, "00:15:5d:01:02:03" }},
		{"direct, not asked for", "", func(p *Path) { p.directly(); p.Inner, p.Expected = outside, false }},
		{"a pod's source that this node cannot send", "", func(p *Path) { p.directly(); p.OfPod = PathTest{Result: Silent, Error: "invalid argument"} }},
		{"a machine that answers no pings", "", func(p *Path) { p.directly(); p.Host, p.Full = PathTest{Result: Silent}, PathTest{Result: Silent} }},

		{"does not forward to its pods", causeNotForwarding, func(p *Path) { p.NotForwarding = true }},
		{"direct, does not forward to its pods", causeNotForwarding, func(p *Path) { p.directly(); p.Inner, p.NotForwarding = outside, true }},
		{"no route to the machine", causeNoRoute, func(p *Path) { p.Underlay = "" }},
		{"the route is another's", causeNoRoute, func(p *Path) { p.Kind, p.Device = "", "eth1" }},
		{"a rule for a source", causeNoRoute, func(p *Path) {
			p.Expected, p.Astray = false, []Astray{{Source: addr("192.168.0.3"), Device: "eth0", Table: 30200}}
		}},
		{"no answer to ARP", causePeerDown, func(p *Path) {
			p.silence()
			p.Inner.Left, p.Host, p.Neighbour = []string{"flannel.1"}, PathTest{Result: Silent}, NeighbourDown
		}},
		{"nothing behind a router", causePeerDown, func(p *Path) { p.silence(); p.Host = PathTest{Result: Silent} }},
		{"port closed", causePortClosed, func(p *Path) { p.silence(); p.Rejected = RejectedClosed }},
		{"prohibited", causePortFiltered, func(p *Path) { p.silence(); p.Rejected = RejectedProhibited }},
		{"dropped", causePortFiltered, func(p *Path) { p.silence() }},
		{"dropped by somebody else's node", causePortFiltered, func(p *Path) { p.silence(); p.Expected = false }},
		{"large ones lost", causeMTU, func(p *Path) { p.Full, p.Largest = PathTest{Result: Silent}, 1372 }},
		{"checksum", causeChecksum, func(p *Path) { p.TCP = lost }},
		{"another MAC", causeMACMismatch, func(p *Path) { p.Inner, p.Frame, p.AnswerMAC = lost, lost, "02:00:00:00:00:05" }},
		{"only ARP", causePeerDrops, func(p *Path) { p.Inner, p.Frame, p.Broadcast = lost, lost, lost }},
		{"sent, and only a frame by hand is answered", causeUnknown, func(p *Path) { p.Inner = lost }},
		{"dropped before the underlay", causeOwnFirewall, func(p *Path) { p.silence(); p.Inner.Left = []string{"flannel.1"} }},
		{"dropped after the underlay", causeOwnFirewall, func(p *Path) { p.Inner = lost; p.Inner.Arrived = []string{"eth0"} }},
		{"the filter is loose", causeOwnFirewall, func(p *Path) {
			p.Inner, p.ReversePath, p.Filters = lost, 4, map[string]int{"eth0": 0}
			p.Inner.Arrived = []string{"eth0"}
		}},
		{"the filter is strict", causeReversePath, func(p *Path) {
			p.Inner, p.ReversePath, p.Filters = lost, 4, map[string]int{"eth0": 1}
			p.Inner.Arrived = []string{"eth0"}
		}},
		{"strict, and dropped nothing", causeOwnFirewall, func(p *Path) {
			p.Inner, p.Filters = lost, map[string]int{"eth0": 1}
			p.Inner.Arrived = []string{"eth0"}
		}},
		{"to a pod", causeCloudRoute, func(p *Path) { p.directly(); p.Inner = outside }},
		{"from a pod", causeCloudRoute, func(p *Path) { p.directly(); p.OfPod = outside }},
		{"large ones lost, direct", causeMTU, func(p *Path) { p.directly(); p.Full, p.Largest = PathTest{Result: Silent}, 1400 }},
		{"WireGuard, nothing comes", causePortFiltered, func(p *Path) { p.keyed() }},
		{"WireGuard, no handshake", causeWireGuardKeys, func(p *Path) { p.keyed(); p.Refused = true }},
		{"WireGuard, with a handshake", causePeerDrops, func(p *Path) { p.keyed(); p.Refused, p.Handshake = true, true }},
		{"WireGuard, closed", causePortClosed, func(p *Path) { p.keyed(); p.Rejected = RejectedClosed }},
	} {
		p := working()
		c.change(&p)
		if got := p.diagnose(); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
		s := healthy()
		s.Linux.Paths = Known([]Path{p})
		for _, r := range Examine(s) {
			i := slices.IndexFunc(pathCauses, func(c pathCause) bool { return c.code == r.Code })
			switch {
			case i < 0:
			case pathCauses[i].cause != c.want && (r.Cause != "" || r.Peers != nil || r.Verdict == Fail || r.Verdict == Warn):
				t.Errorf("%s: %s has %+v", c.name, r.Code, r.Finding)
			case pathCauses[i].cause == c.want && (r.Cause != c.want || !slices.Equal(r.Peers, []string{"a"}) || r.Fix == "" || r.Verdict != pathCauses[i].verdict):
				t.Errorf("%s: %s has %+v", c.name, r.Code, r.Finding)
			}
		}
	}
}

// The value for Backend.MTU is that of the underlay, and the fix for a card names the
// device.
func TestPathFixes(t *testing.T) {
	checkAll(t, healthy, []testCase{
		{"FL604", Fail, "1372 1450", func(s *Snapshot) {
			p := working()
			p.Full, p.Largest = PathTest{Result: Silent}, 1372
			s.Linux.Paths = Known([]Path{p})
		}},
		{"FL610", Fail, "192.168.0.3 30200 eth0", func(s *Snapshot) {
			p := working()
			p.Astray = []Astray{{Source: addr("192.168.0.3"), Device: "eth0", Table: 30200}}
			s.Linux.Paths = Known([]Path{p})
		}},
		{"FL610", Fail, "10.5.3.1 invalid argument", func(s *Snapshot) {
			p := working()
			p.Astray = []Astray{{Source: addr("10.5.3.1"), Error: "invalid argument"}}
			s.Linux.Paths = Known([]Path{p})
		}},
		{"FL610", Fail, "10.5.4.0/24 blackhole", func(s *Snapshot) {
			p := working()
			p.Kind, p.Device = "", ""
			s.Linux.Paths = Known([]Path{p})
		}},
		{"FL604", Undecided, "socket", func(s *Snapshot) { s.Linux.Paths = Known([]Path{{Peer: "a", Problem: "no socket"}}) }},
		{"FL604", Skipped, "", func(s *Snapshot) { s.Linux.Paths = Known([]Path{}) }},
		{"FL604", Undecided, "slow", func(s *Snapshot) { s.Linux.Paths = Unknown[[]Path]("slow") }},
	})
	for code, c := range map[string]struct {
		change func(*Path)
		fix    string
	}{
		"FL604": {func(p *Path) { p.Full, p.Largest = PathTest{Result: Silent}, 1372 }, "Backend.MTU to 1422"},
		"FL604 too small": {func(p *Path) {
			p.Full, p.Largest, p.Subnet = PathTest{Result: Silent}, 1200, pfx("fd00:5::/64")
		}, "1330 bytes"},
		"FL605": {func(p *Path) { p.TCP = lost }, "ethtool -K flannel.1 tx-checksum-ip-generic off"},
		"FL609": {func(p *Path) { p.Inner = lost; p.Inner.Arrived = []string{"eth0"} }, "FL204"},
	} {
		s, p := healthy(), working()
		c.change(&p)
		s.Linux.Paths = Known([]Path{p})
		s.rules(":INPUT ACCEPT [0:0]", "-A INPUT -p udp -m udp --dport 8472 -j DROP")
		if r := find(t, Examine(s), code[:5]); !strings.Contains(r.Fix, c.fix) {
			t.Errorf("%s: the fix is %q, without %q", code, r.Fix, c.fix)
		}
	}
}

// Every cause has one check, and several peers with one cause are named by it.
func TestCauses(t *testing.T) {
	seen := map[Cause]bool{}
	for _, c := range pathCauses {
		if seen[c.cause] || c.cause == "" {
			t.Errorf("%s: %q is empty, or there twice", c.code, c.cause)
		}
		seen[c.cause] = true
	}
	a, b, other := working(), working(), working()
	a.silence()
	b.silence()
	b.Peer, other.Peer = "b", "other"
	s := healthy()
	s.Linux.Paths = Known([]Path{a, b, other})
	if r := find(t, Examine(s), "FL603"); !slices.Equal(r.Peers, []string{"a", "b"}) {
		t.Errorf("the peers are %v", r.Peers)
	}
}
