package guard

import (
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// The rules (guard_linux.go has a table of them), which are also the names of their counters. Each
// consists of several rules of nftables, which lead to the chain foundBy(rule).
const (
	outsider = "outsider"
	rulePod  = "pod"
	impostor = "impostor"
	inner    = "inner"
	spoofed  = "spoofed"
)

var ruleNames = []string{outsider, rulePod, impostor, inner, spoofed}

// claimed counts packets, of all rules, that claim to be from a pod of a peer.
const claimed = "claimed"

// The chains. Packets enter the first three of them, and get to the others by goTo, which does not
// return: at the end of such a chain, the packet is accepted, by the policy of the first one.
const (
	prerouting = "prerouting"
	arriving   = "arriving" // for this node
	leaving    = "leaving"  // to others, also those of this node

	fromTunnel = "from-tunnel"
	direct     = "direct"   // from anywhere else
	fromPod    = "from-pod" // from an interface of pods

	outer       = "outer"        // an outer packet, which has that of a pod inside, for this node
	outerIPIP   = "outer-ipip"   // may be one
	speaker     = "speaker"      // whom does the packet inside come from?
	passing     = "passing"      // an outer packet to another node
	passingIPIP = "passing-ipip" // may be one
	passingPod  = "passing-pod"  // from a pod
	relayed     = "relayed"      // from a node: whom does the packet inside come from?
)

// droppedBy is the counter of packets that a rule has found and dropped, countedBy that of those that it
// has found and only counted. No packet is in both: with a counter of all of them, whoever reads two
// counters while packets arrive could take dropped ones for others.
func droppedBy(rule string) string { return "dropped-" + rule }
func countedBy(rule string) string { return "counted-" + rule }

// foundBy is the chain for packets that a rule finds, claimedBy the one for those of them
// that claim to be from a pod of a peer.
func foundBy(rule string) string   { return "found-" + rule }
func claimedBy(rule string) string { return "claimed-" + rule }

// chainNames are those of all chains that there may be, in the order in which rules are listed.
func chainNames() []string {
	all := []string{prerouting, arriving, leaving, fromTunnel, direct, fromPod, outer, outerIPIP, speaker, passing, passingIPIP, passingPod, relayed}
	for _, rule := range ruleNames {
		all = append(all, foundBy(rule), claimedBy(rule))
	}
	return all
}

type chain struct {
	name  string
	rules []rule
}

type rule struct {
	comment string
	exprs   []expr.Any
}

// add appends a rule of several parts, which the kernel runs in order until one does not match. nft
// shows the comment.
func (c *chain) add(comment string, parts ...[]expr.Any) {
	r := rule{comment: comment}
	for _, p := range parts {
		r.exprs = append(r.exprs, p...)
	}
	c.rules = append(c.rules, r)
}

// addEach appends a rule for each of the matches, all with one verdict; nil: the rules have none.
func (c *chain) addEach(comment string, matches [][]expr.Any, verdict []expr.Any) {
	for _, m := range matches {
		c.add(comment, m, verdict)
	}
}

var accept = []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}

// found is the verdict for packets that a rule finds.
func found(rule string) []expr.Any { return goTo(foundBy(rule)) }

// chains translates c; group is the NFLOG group of samples. At most one rule in prerouting finds a
// packet, and at most one of those for outer packets. If packets are dropped, none is found twice.
func chains(c Config, group uint16) []chain {
	all := c.sources()
	if _, exists := c.layout(); exists {
		all = append(all, c.arriving()...)
		all = append(all, c.leaving()...)
	}
	for _, rule := range ruleNames {
		all = append(all, c.ends(rule, group)...)
	}
	return all
}

// sources returns the chains that judge a packet by its source and the device from which
// it comes. They are evaluated before connection tracking, so that what is dropped costs
// nothing there.
func (c Config) sources() []chain {
	first := chain{name: prerouting}
	first.add("the node itself", iif("lo"), accept)
	for _, name := range c.Tunnels {
		first.add("from a tunnel", iif(name), goTo(fromTunnel))
	}
	first.add("from anywhere else", goTo(direct))

	tunnel := chain{name: fromTunnel}
	// No peer can send from these addresses: the daemon, which forwards for udp, drops that.
	for _, a := range c.Errors {
		tunnel.add("ICMP errors of the node itself", addr(source, netip.PrefixFrom(a, a.BitLen())), accept)
	}
	tunnel.addEach("a pod of this node sends through no tunnel", addrs(source, c.Subnets), found(inner))
	tunnel.addEach("from pods", addrs(source, c.Networks), accept)
	tunnel.addEach("from a node", peersAt(source), accept)
	tunnel.addEach("from a node", addrs(source, c.Sources), accept)
	tunnel.add("from elsewhere", found(inner))

	plain := chain{name: direct}
	plain.add("from a pod", lookup(iifname(), pods), goTo(fromPod))
	if c.Routed { // else pods of peers send from where no route need lead to them
		for _, n := range c.Networks {
			plain.add("between pods, on a wrong way", addr(source, n), addr(destination, n), unrouted(), found(spoofed))
		}
	}

	pod := chain{name: fromPod}
	pod.add("without an address yet", addr(source, netip.PrefixFrom(netip.IPv4Unspecified(), 32)), accept)
	pod.add("without an address yet", addr(source, netip.PrefixFrom(netip.IPv6Unspecified(), 128)), accept)
	pod.add("not its address", unrouted(), found(spoofed))
	return []chain{first, tunnel, plain, pod}
}

// arriving returns the chains for outer packets to this node. They are evaluated last, as
// the tunnel would receive the packets: a Service can change the destination of any
// packet to the port of the tunnel.
func (c Config) arriving() []chain {
	here := chain{name: arriving}
	here.add("the node itself", iif("lo"), accept)
	content := c.outerPackets(&here, outer, outerIPIP) // the chain outerIPIP
	c.fromCluster(&content, outer)

	who := chain{name: outer}
	who.add("from a pod", lookup(iifname(), pods), found(rulePod))
	who.addEach("from a listed source", addrs(source, c.Sources), accept) // these may be in the pod network, like addresses of nodes
	who.addEach("from a node", peersAt(source), goTo(speaker))
	who.addEach("from a pod", addrs(source, c.Networks), found(rulePod))
	who.add("from elsewhere", found(outsider))
	return []chain{here, content, who, c.speaker()}
}

// leaving returns the chains for outer packets to others, whatever their destination: a
// node may have more addresses than its lease. They are evaluated before this node puts
// its own address into the packets: the receiver could not tell them from its own.
func (c Config) leaving() []chain {
	out := chain{name: leaving}
	content := c.outerPackets(&out, passing, passingIPIP)

	who := chain{name: passing}
	who.add("from a pod", lookup(iifname(), pods), goTo(passingPod)) // kernels before 5.7 have no such interface here
	who.addEach("from a pod", addrs(source, c.Subnets), goTo(passingPod))
	who.addEach("from a listed source", addrs(source, c.Sources), accept)
	who.addEach("from another node", peersAt(source), goTo(relayed))

	pod := chain{name: passingPod}
	pod.addEach("to a node", peersAt(destination), found(rulePod)) // its address may be in the pod network
	pod.addEach("to a pod, such as one with an overlay of its own", addrs(destination, c.Networks), accept)
	pod.add("to anybody else, maybe another address of a node", found(rulePod))
	return []chain{out, content, who, pod, c.relayed()}
}

// outerPackets adds rules to the chain from: they lead packets of the tunnel to the chain to.
//
// UDP datagrams are the tunnel's by their port and VNI. A first fragment in which the kernel finds
// no port counts as the tunnel's: nothing else is left behind the rules for other protocols and
// ports (fragment_linux.go). A protocol without ports may also be used by others. A further chain,
// which outerPackets returns, therefore looks at the packet inside: the outer packet is the
// tunnel's if the one inside is for a pod (see fromCluster, too). Both have to be IPv4. This chain
// has the name content, and is empty for UDP. Its rules are not in from, because nft 1.0.6 aborts
// when it lists a rule that compares the protocol with 4 and then bytes behind the IP header.
// Packets that no rule of from leads elsewhere are not the tunnel's, and pass.
func (c Config) outerPackets(from *chain, to, content string) chain {
	o, inside := c.Outer, chain{name: content}
	if o.Protocol == unix.IPPROTO_UDP {
		from.add("of another protocol", notProtocol(o.Protocol), accept)
		from.add("to the port of the tunnel", protocol(o.Protocol), dport(o.Port), vni(o.VNI), goTo(to))
		for _, part := range incomplete() { // they may lack the VNI, or the destination inside
			from.add("a part of a header", protocol(o.Protocol), dport(o.Port), part, goTo(to))
		}
		from.add("of no tunnel of ours", protocol(o.Protocol), anyPort(), accept)
		from.add("options without a port", firstFragment6(), goTo(to)) // the kernel finds no header of UDP in them
		return inside
	}
	from.add("a part of a header", protocol(o.Protocol), short(false), goTo(to)) // false: IPv4
	from.add("maybe of the tunnel", protocol(o.Protocol), goTo(content))         // others may use the protocol, too
	for _, n := range c.Networks {
		if n.Addr().Is4() {
			inside.add("with a packet to a pod", compare(innerDestination(o.Header), n), goTo(to))
		}
	}
	return inside
}

// fromCluster adds rules to the chain content, of arriving: a packet of a protocol without ports
// is the tunnel's, too, if the one inside claims to be from a pod or node, whatever its destination,
// which may be a Service or this node. A packet inside from elsewhere comes out of the tunnel device,
// where the rule inner finds it. There are no such rules in leaving: a load balancer may forward
// packets of pods to a pod in this way.
func (c Config) fromCluster(content *chain, to string) {
	if c.Outer.Protocol == unix.IPPROTO_UDP {
		return
	}
	l, _ := c.layout()
	for _, n := range slices.Concat(c.Networks, c.Sources) {
		content.add("with a packet from a pod or a listed source", l.from(n), goTo(to))
	}
	content.add("with a packet from a node", l.ofFamily(false), lookup(l.source(false, 1), nodes4), goTo(to))
}

// ends returns the chains in which packets that a rule finds end: foundBy(rule), and claimedBy(rule)
// for those that claim to be from a pod of a peer. Both count all packets, pass some to the sampler,
// and accept or drop them. The latter has samples of its own, which no flood of other packets can use
// up, and counts them apart: the trial depends on that number.
func (c Config) ends(rule string, group uint16) []chain {
	samples := func(prefix string) []expr.Any { // ends at the limit; the next rule follows in any case
		return []expr.Any{
			&expr.Limit{Type: expr.LimitTypePkts, Rate: sampleRate, Unit: expr.LimitTimeSecond, Burst: sampleRate},
			&expr.Log{Key: 1<<unix.NFTA_LOG_GROUP | 1<<unix.NFTA_LOG_SNAPLEN | 1<<unix.NFTA_LOG_PREFIX, Group: group, Snaplen: sampleBytes, Data: []byte(prefix)},
		}
	}
	count := func(name string) []expr.Any {
		return []expr.Any{&expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: name}}
	}
	decide := append(count(countedBy(rule)), accept...)
	if c.Enforce {
		decide = append(count(droppedBy(rule)), &expr.Verdict{Kind: expr.VerdictDrop})
	}
	var recorded [][]expr.Any
	if rule == outsider && !c.Enforce {
		recorded = record()
	}
	end := chain{name: foundBy(rule)}
	end.addEach("maybe from a pod of a peer", c.claims(rule), goTo(claimedBy(rule)))
	end.add("samples", samples(rule))
	end.addEach("maybe of a node that joins", recorded, nil)
	end.add("all of them", decide)
	if rule == rulePod || rule == inner { // which have no claims
		return []chain{end}
	}
	peer := chain{name: claimedBy(rule)}
	peer.add("samples", samples(claimPrefix+rule))
	peer.add("for the trial", count(claimed))
	peer.addEach("maybe of a node that joins", recorded, nil)
	peer.add("all of them", decide)
	return []chain{peer, end}
}

// claims match packets that a rule finds and that claim to be from a pod of a peer. The
// packets of a node that is no peer any more claim nothing, although it still runs. The rules pod
// and inner have no claims: the pods of this node send the packets of the rule pod (and some of the
// rule spoofed: elsewhere excludes these), and the source of those of inner is in no other node's subnet.
func (c Config) claims(rule string) (all [][]expr.Any) {
	l, exists := c.layout()
	elsewhere := append(iifname(), &expr.Lookup{SourceRegister: 1, SetName: pods, Invert: true}) // not from an interface of pods
	for _, m := range c.masks {
		switch {
		case (rule == outsider || rule == impostor) && exists && m.kind == inside:
			all = append(all, m.lookup(slices.Concat(l.ofFamily(m.v6), l.source(m.v6, 1)), 1))
		case rule == spoofed && m.kind == inside:
			all = append(all, m.lookup(slices.Concat(elsewhere, rawSource(m.v6)), 1))
		}
	}
	return all
}

// peersAt matches packets with the address of a peer.
func peersAt(f field) [][]expr.Any {
	return [][]expr.Any{lookup(load(f, false), peers4), lookup(load(f, true), peers6)}
}
