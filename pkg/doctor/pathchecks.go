package doctor

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"flannel/pkg/dataplane"
)

// pathCause is what the doctor says about a cause that Path.diagnose finds. The
// fields of Path, with the packets that were sent, are described there: Host is a
// test of the peer's machine, Inner of the way to its pods, Frame of the tunnel,
// with a packet that package probe has encapsulated. The Result of a test is Answered if
// the program got an answer; arrived() if an answer was seen on a device, which a firewall
// of this node may drop afterwards; left(d) if the packet was seen leaving through d.
// Device is the interface that the route to the peer's subnet leads to (a tunnel, or the
// underlay itself), and Underlay the one by which packets leave the node.
type pathCause struct {
	code           string
	cause          Cause
	title, problem string // as in Check
	verdict        Verdict
	seen           func(Path) string // printed after the peer's name
	fix            func(Snapshot, Path) string
}

// pathCauses has every cause once.
var pathCauses = []pathCause{
	{"FL601", causePeerDown, "the machines of the tested peers answer", "the machines of peers do not answer", Warn,
		func(p Path) string {
			if p.Neighbour == NeighbourDown {
				return "nobody has the next hop's address on " + p.Underlay
			}
			return "neither pings nor TCP nor UDP to " + p.PublicIP.String() + " are answered"
		},
		always("Start the machine, or repair the network between the nodes; if all peers are affected, repair that of this node. " +
			"If the node is gone for good, delete its lease (in Kubernetes the Node).")},
	{"FL602", causePortClosed, "the tunnel's port is open on the tested peers", "the tunnel's port is closed on peers", Fail,
		func(p Path) string { return p.packets() + " are answered with an error, as if nothing listens there" },
		func(_ Snapshot, p Path) string {
			return "Start flanneld on that node; all nodes need the same Backend.Port. If it runs there, a firewall rejects the packets. " + accept(p)
		}},
	{"FL603", causePortFiltered, "no firewall drops the tunnel's packets to the tested peers", "a firewall drops the tunnel's packets to peers", Fail,
		func(p Path) string {
			if p.Rejected != "" { // diagnose has excluded RejectedClosed
				return p.packets() + " are rejected as prohibited"
			}
			return "the machine answers, but not " + p.packets()
		},
		func(_ Snapshot, p Path) string { return accept(p) }},
	{"FL604", causeMTU, "packets of the full size reach the tested peers", "large packets do not reach peers", Fail,
		func(p Path) string {
			return fmt.Sprintf("packets of %d bytes pass, but not those of %d, the MTU of %s", p.Largest, p.MTU, p.Device)
		},
		func(s Snapshot, p Path) string {
			if least := dataplane.MinMTU(p.Subnet.Addr().Is6()); p.Largest < least {
				return fmt.Sprintf("Let the network between the nodes carry packets of %d bytes, or more. No smaller MTU helps: pods need %d bytes.",
					least+p.Overhead, least)
			}
			// The path may be direct with a backend that has Backend.MTU: vxlan with
			// DirectRouting.
			kind := p.Kind
			if n := s.node(); n != nil {
				kind = n.Backend
			}
			return fmt.Sprintf("%s, and recreate the pods; or let the network between the nodes carry packets of %d bytes.",
				s.lowerMTU(kind, p.Underlay, strconv.Itoa(p.Largest+p.Overhead)), p.MTU+p.Overhead)
		}},
	{"FL605", causeChecksum, "TCP checksums arrive as they should", "TCP checksums are wrong when they arrive at peers", Fail,
		func(p Path) string {
			return "a TCP packet is answered if its checksum is computed by software, but not if that is left to " + p.Underlay
		},
		// At Device, so that the kernel computes the checksum before the tunnel gets the packet.
		func(_ Snapshot, p Path) string {
			return fmt.Sprintf("Run ethtool -K %s tx-checksum-ip-generic off on this node; a udev rule makes it permanent.", p.Device)
		}},
	{"FL606", causeMACMismatch, "the tested peers have the MAC addresses that they publish", "peers have other MAC addresses than they publish", Fail,
		func(p Path) string {
			return "its lease has " + p.PublishedMAC + ", but " + p.AnswerMAC + " answers"
		},
		always("Start flanneld on that node, which publishes the MAC address of its device. If it runs there, " +
			"another program sets the address, or another machine uses " + "the node's address.")},
	{"FL607", causeCloudRoute, "the network between the nodes forwards packets with pods' addresses", "the network between the nodes drops packets with pods' addresses", Fail,
		func(p Path) string {
			if p.Inner.Result == Answered {
				return "packets to it are answered, but not those with a source in this node's subnet"
			}
			return "the machine answers, but not packets to " + p.Subnet.String() + " through it"
		},
		always("Turn off the cloud's check of sources and destinations for all nodes, and add a route for each node's subnet; " +
			"or use a tunnel (vxlan without DirectRouting).")},
	{"FL608", causeReversePath, "the reverse path filter of this node passes the answers of the tested peers", "the reverse path filter of this node drops the answers of peers", Fail,
		func(p Path) string {
			return fmt.Sprintf("answers arrive on %s, and the counter IPReversePathFilter rises", strings.Join(p.Inner.Arrived, ", "))
		},
		func(_ Snapshot, p Path) string {
			return fmt.Sprintf("Correct the route to %[1]s (ip route get %[1]s), which leads to another interface, or set --iface; or run sysctl -w net.ipv4.conf.all.rp_filter=2.", p.PublicIP)
		}},
	{"FL609", causeOwnFirewall, "no firewall of this node drops packets from and to the tested peers", "a firewall of this node drops packets from or to peers", Fail,
		func(p Path) string {
			if p.Inner.arrived() {
				return "answers arrive on " + strings.Join(p.Inner.Arrived, ", ") + ", and go no further"
			}
			return p.packets() + " do not leave through " + p.Underlay
		},
		func(s Snapshot, p Path) string {
			if f := tunnelAccepted(s); f.Verdict == Fail {
				return f.Fix + " See FL204."
			}
			return "Find what drops them: nft list ruleset, iptables-save, eBPF (bpftool net), tc. " + accept(p)
		}},
	{"FL610", causeNoRoute, "this node has routes to the tested peers", "this node has no route to peers", Fail,
		func(p Path) string {
			if p.Underlay == "" {
				return "there is no route to " + p.PublicIP.String()
			}
			if len(p.Astray) > 0 { // each says which packets take another way
				return fmt.Sprintf("the route to %s leads to %s, but %s", p.Subnet, p.Device, p.Astray[0])
			}
			if p.Device == "" {
				return "there is no route to " + p.Subnet.String() + ", or a route that drops packets comes first (blackhole, unreachable, prohibit)"
			}
			return "the route to " + p.Subnet.String() + " leads to " + p.Device
		},
		always("See flanneld status; correct the host's routes (ip route show table all) and rules (ip rule) that come before flanneld's. " +
			"In clouds, NetworkManager's nm-cloud-setup makes such rules (systemctl disable --now nm-cloud-setup.timer nm-cloud-setup.service, and delete the rules).")},
	{"FL611", causeWireGuardKeys, "WireGuard agrees on keys with the tested peers", "WireGuard does not agree on keys with peers", Fail,
		func(p Path) string { return "its packets arrive, but there is no handshake" },
		always("Give all nodes the same Backend.PSK; restart flanneld on that node, which publishes its key again.")},
	{"FL612", causePeerDrops, "the tested peers answer what arrives", "peers do not answer what arrives", Fail,
		func(p Path) string {
			return "the tunnel's packets arrive at " + p.PublicIP.String() + ", but pings in them are not answered"
		},
		always("Run flanneld doctor on that node: its firewall, its reverse path filter or its guard drops the packets, " +
			"or flanneld does not run there and it has no route to this node.")},
	{"FL613", causeUnknown, "what fails on the way to the tested peers is known", "peers do not answer, and the cause is not known", Fail,
		Path.excluded,
		always("Run flanneld doctor on that node, and follow the path in Documentation/troubleshooting.md.")},
	{"FL614", causeNotForwarding, "the tested peers forward packets from and to their pods", "peers do not forward packets from or to their pods", Fail,
		func(p Path) string {
			return "it answers, but says that it does not forward, or does not answer for its pods"
		},
		always("Run flanneld doctor on that node: a kernel parameter of one of its devices (FL201), or a rule or route before flanneld's.")},
}

// always returns a function that says the same of every path.
func always(text string) func(Snapshot, Path) string {
	return func(Snapshot, Path) string { return text }
}

// packets names what the tunnel sends: "packets to UDP port 8472", or, of a protocol without
// ports, "packets with IP protocol 4 (ipencap)". Port 0 of a UDP tunnel is not known.
func (p Path) packets() string {
	tunnel := dataplane.TraitsOfBackend(p.Kind)
	switch {
	case p.Kind == PathDirect:
		return "packets to pods"
	case tunnel.Protocol == protocolUDP && p.Port == 0:
		return "packets of the tunnel"
	}
	return outer{protocol: int(tunnel.Protocol), port: p.Port}.String()
}

// accept is the fix for a firewall.
func accept(p Path) string {
	what := p.packets()
	if p.Kind != PathDirect {
		what = strings.TrimPrefix(what, "packets to ") // "Accept UDP port 8472 from"; the other texts of packets stay
	}
	return "Accept " + what + " from and to all nodes, in the nodes' firewalls, those between them and the cloud's security groups."
}

// excluded says what the tests have excluded, for a path whose cause is unknown.
// diagnose has already compared AnswerMAC with PublishedMAC.
func (p Path) excluded() string {
	var not []string
	add := func(excluded bool, what string) {
		if excluded {
			not = append(not, what)
		}
	}
	add(p.Host.Result == Answered, "the machine answers")
	add(p.Inner.left(p.Underlay), "packets leave through "+p.Underlay)
	add(p.Rejected == "", "nobody rejects them")
	add(p.Frame.arrived(), "a frame made by hand is answered")
	add(p.AnswerMAC != "", "the MAC address is the published one")
	return strings.Join(not, "; ")
}

// pathChecks returns a check for each cause.
func pathChecks() (checks []Check) {
	for _, c := range pathCauses {
		checks = append(checks, Check{c.code, c.title, c.problem, linux, needs{pathsKnown}, c.examine})
	}
	return checks
}

// examine finds the tested peers with the cause. A path has one cause, the first that
// diagnose finds: see excludes for what is known of the others. diagnose returns "" if the
// path works, if nobody says that a silent peer has to answer, or with a Problem, if it could
// not be tested. There is at least one path (pathsKnown).
func (c pathCause) examine(s Snapshot) Finding {
	// tested: without the cause; open: the tests do not show it; untested: there was an error.
	var peers, seen, fixes, tested, untested, open []string
	for _, p := range s.Linux.Paths.Value {
		name := fmt.Sprintf("%s (%s)", p.Peer, p.PublicIP)
		switch cause := p.diagnose(); {
		case p.Problem != "":
			untested = append(untested, name+": "+p.Problem)
		case cause == c.cause:
			peers, fixes = appendOnce(peers, p.Peer), appendOnce(fixes, c.fix(s, p))
			seen = append(seen, name+": "+c.seen(p))
		case cause != "" && !p.excludes(c.cause):
			open = append(open, fmt.Sprintf("%s: what stops packets is %s", name, cause))
		case p.Inner.Result != Answered:
			open = append(open, name+": it does not answer, and may be one that never does")
		default:
			tested = append(tested, name)
		}
	}
	switch {
	case len(seen) > 0:
		return Finding{Verdict: c.verdict, Seen: several(seen), Fix: strings.Join(fixes, " "), Cause: c.cause, Peers: peers}
	case len(untested) > 0:
		return undecidable("%s", several(untested))
	case len(tested) == 0:
		return skip("%s", several(open))
	}
	return ok("%s", several(tested))
}

// excludes reports whether the tests of a path with a cause exclude another one: an answer
// to small packets does, except for causes that it does not show. NotForwarding is no
// result of a test: the daemon has found it.
func (p Path) excludes(other Cause) bool {
	switch other {
	case causeCloudRoute, causeMTU, causeChecksum: // see diagnoseAnswering
		return false
	case causeNotForwarding:
		return p.Inner.Result == Answered && !p.NotForwarding
	}
	return p.Inner.Result == Answered
}

// appendOnce appends a text unless the list has it.
func appendOnce(list []string, text string) []string {
	if slices.Contains(list, text) {
		return list
	}
	return append(list, text)
}
