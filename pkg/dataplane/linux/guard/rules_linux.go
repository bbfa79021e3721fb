package guard

import (
	"encoding/binary"
	"net"
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// The rules, which are also the names of their counters.
const (
	Outsider = "outsider"
	Pod      = "pod"
	Impostor = "impostor"
	Inner    = "inner"
	Spoofed  = "spoofed"
)

var ruleNames = []string{Outsider, Pod, Impostor, Inner, Spoofed}

// The sets.
const (
	peers4  = "peers4"
	peers6  = "peers6"
	owners4 = "owners4"
	owners6 = "owners6"
	pods    = "pods"
)

// The chains. Packets enter prerouting.
const (
	prerouting = "prerouting"
	fromTunnel = "from-tunnel"
	direct     = "direct"   // from anywhere else
	fromPod    = "from-pod" // from an interface of pods
	port       = "port"     // is it an outer packet?
	// ipip is a chain of its own, because nft 1.0.6 aborts when it lists a rule that compares
	// the protocol with this one, and then bytes behind it.
	ipip     = "ipip"
	outer    = "outer"
	speaker  = "speaker" // whom does the packet inside come from?
	podOuter = "pod-outer"
)

// foundBy is the chain for packets that a rule finds.
func foundBy(rule string) string { return "found-" + rule }

var chainNames = append([]string{prerouting, fromTunnel, direct, fromPod, port, ipip, outer, speaker, podOuter},
	foundBy(Outsider), foundBy(Pod), foundBy(Impostor), foundBy(Inner), foundBy(Spoofed))

type chain struct {
	name  string
	rules []rule
}

type rule struct {
	comment string
	exprs   []expr.Any
}

// add appends a rule of several parts.
func (c *chain) add(comment string, parts ...[]expr.Any) {
	r := rule{comment: comment}
	for _, p := range parts {
		r.exprs = append(r.exprs, p...)
	}
	c.rules = append(c.rules, r)
}

// chains translates c; group is that of samples. A packet that a rule counts is either
// dropped, or no other rule counts it.
func chains(c Config, group uint16) []chain {
	found := func(rule string) []expr.Any { return goTo(foundBy(rule)) }
	accept := []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}

	first := chain{name: prerouting}
	first.add("the node itself", iif("lo"), accept)
	for _, name := range c.Tunnels {
		first.add("from a tunnel", iif(name), goTo(fromTunnel))
	}
	first.add("from anywhere else", goTo(direct))

	tunnel := chain{name: fromTunnel}
	// No peer can send from these addresses: the daemon, which forwards for udp, drops that.
	for _, a := range c.Errors {
		tunnel.add("ICMP errors of the node itself", addr(source, netip.PrefixFrom(a, a.BitLen())), goTo(port))
	}
	for _, s := range c.Subnets {
		tunnel.add("a pod of this node sends through no tunnel", addr(source, s), found(Inner))
	}
	for _, n := range c.Networks {
		tunnel.add("from pods", addr(source, n), goTo(port))
	}
	for _, known := range c.senders() {
		tunnel.add("from a node", known, goTo(port))
	}
	tunnel.add("from elsewhere", found(Inner))

	plain := chain{name: direct}
	plain.add("from a pod", lookup(iifname(), pods), goTo(fromPod))
	if c.Routed {
		for _, n := range c.Networks {
			plain.add("between pods, on a wrong way", addr(source, n), addr(destination, n), unrouted(), found(Spoofed))
		}
	}
	plain.add("maybe an outer packet", goTo(port))

	pod := chain{name: fromPod}
	pod.add("without an address yet", addr(source, netip.PrefixFrom(netip.IPv4Unspecified(), 32)), accept)
	pod.add("without an address yet", addr(source, netip.PrefixFrom(netip.IPv6Unspecified(), 128)), accept)
	pod.add("not its address", unrouted(), found(Spoofed))
	pod.add("maybe an outer packet", goTo(port))

	outside := chain{name: outer}
	outside.add("from a pod", lookup(iifname(), pods), goTo(podOuter))
	for _, s := range c.Sources { // which may be in the pod network, like addresses of nodes
		outside.add("from a listed source", addr(source, s), accept)
	}
	for _, set := range []string{peers4, peers6} {
		outside.add("from a node", lookup(load(source, set == peers6), set), goTo(speaker))
	}
	for _, n := range c.Networks {
		outside.add("from a pod", addr(source, n), goTo(podOuter))
	}
	outside.add("to another host", destinationType(expr.CmpOpEq), accept)
	outside.add("from elsewhere", found(Outsider))

	inside := chain{name: podOuter}
	for _, set := range []string{peers4, peers6} {
		inside.add("to a node", lookup(load(destination, set == peers6), set), found(Pod))
	}
	inside.add("to this node", destinationType(expr.CmpOpNeq), found(Pod))
	decide, content := c.outerPackets()
	all := []chain{first, tunnel, plain, pod, decide, content, outside, c.speaker(accept), inside}
	for _, rule := range ruleNames {
		all = append(all, c.end(rule, group))
	}
	return all
}

// outerPackets returns the chains that find packets of the tunnel. The second one looks at
// what is inside of a packet of protocol 4.
func (c Config) outerPackets() (decide, content chain) {
	decide, content = chain{name: port}, chain{name: ipip}
	for _, o := range c.UDP {
		decide.add("to the port of the tunnel", protocol(unix.IPPROTO_UDP), dport(o.Port), vni(o.VNI), goTo(outer))
	}
	for _, v6 := range []bool{false, true} { // they may lack the VNI, or the destination inside
		for _, o := range c.UDP {
			decide.add("a part of a header", protocol(unix.IPPROTO_UDP), dport(o.Port), short(v6), goTo(outer))
		}
	}
	if !c.IPIP {
		return decide, content
	}
	decide.add("a part of a header", protocol(unix.IPPROTO_IPIP), short(false), goTo(outer))
	decide.add("maybe of the tunnel", protocol(unix.IPPROTO_IPIP), goTo(ipip)) // others may use the protocol, too
	for _, n := range c.Networks {
		if n.Addr().Is4() {
			content.add("with a packet to a pod", compare(innerDestination(), n), goTo(outer))
		}
	}
	return decide, content
}

// end returns the chain for packets that a rule finds. Some of them are passed to the
// sampler.
func (c Config) end(rule string, group uint16) chain {
	verdict := expr.VerdictAccept
	if c.Enforce {
		verdict = expr.VerdictDrop
	}
	end := chain{name: foundBy(rule)}
	end.add("samples", []expr.Any{
		&expr.Limit{Type: expr.LimitTypePkts, Rate: sampleRate, Unit: expr.LimitTimeSecond, Burst: sampleRate},
		&expr.Log{Key: 1<<unix.NFTA_LOG_GROUP | 1<<unix.NFTA_LOG_SNAPLEN | 1<<unix.NFTA_LOG_PREFIX, Group: group, Snaplen: sampleBytes, Data: []byte(rule)},
	})
	end.add("all of them", []expr.Any{&expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: rule}, &expr.Verdict{Kind: verdict}})
	return end
}

// senders match the addresses of nodes, and what the operator has listed.
func (c Config) senders() (all [][]expr.Any) {
	for _, set := range []string{peers4, peers6} {
		all = append(all, lookup(load(source, set == peers6), set))
	}
	for _, s := range c.Sources {
		all = append(all, addr(source, s))
	}
	return all
}

func goTo(chain string) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}}
}

// ifname is the name of an interface as the kernel compares it: IFNAMSIZ bytes.
func ifname(name string) string {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, name)
	return string(padded)
}

func iifname() []expr.Any { return []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}} }

func iif(name string) []expr.Any {
	return append(iifname(), &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte(ifname(name))})
}

func lookup(load []expr.Any, set string) []expr.Any {
	return append(load, &expr.Lookup{SourceRegister: 1, SetName: set})
}

// field is an address in the IP header.
type field struct{ offset4, offset6 uint32 } // bytes

var source, destination = field{12, 8}, field{16, 24}

// load loads an address of one family; packets of the other do not match.
func load(f field, v6 bool) []expr.Any {
	family, payload := byte(unix.NFPROTO_IPV4), &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: f.offset4, Len: 4}
	if v6 {
		family, payload.Offset, payload.Len = unix.NFPROTO_IPV6, f.offset6, 16
	}
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{family}}, payload}
}

// addr matches an address in p.
func addr(f field, p netip.Prefix) []expr.Any { return compare(load(f, p.Addr().Is6()), p) }

// compare matches if the address that load loads is in p.
func compare(load []expr.Any, p netip.Prefix) []expr.Any {
	size := p.Addr().BitLen() / 8
	if !p.IsSingleIP() {
		load = append(load, &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: uint32(size), Mask: net.CIDRMask(p.Bits(), 8*size), Xor: make([]byte, size)})
	}
	return append(load, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: p.Masked().Addr().AsSlice()})
}

// innerDestination loads the destination of the IPv4 packet that a packet of protocol 4
// contains.
func innerDestination() []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: destination.offset4, Len: 4}}
}

// vni matches the VNI in the header of VXLAN (RFC 7348), which follows that of UDP. 0
// matches all datagrams.
func vni(number uint32) []expr.Any {
	if number == 0 {
		return nil
	}
	return []expr.Any{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 8 + 4, Len: 3},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.BigEndian.AppendUint32(nil, number)[1:]}}
}

func protocol(number byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{number}}}
}

func dport(p uint16) []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.BigEndian.AppendUint16(nil, p)}}
}

// unrouted matches a source that is not routed to the interface from which the packet
// comes.
func unrouted() []expr.Any {
	return []expr.Any{&expr.Fib{Register: 1, ResultOIF: true, FlagSADDR: true, FlagIIF: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: make([]byte, 4)}}
}

// destinationType compares the type of the destination with unicast, which means another
// host. Local, broadcast and multicast ones arrive at this node.
func destinationType(op expr.CmpOp) []expr.Any {
	return []expr.Any{&expr.Fib{Register: 1, ResultADDRTYPE: true, FlagDADDR: true},
		&expr.Cmp{Op: op, Register: 1, Data: binary.NativeEndian.AppendUint32(nil, unix.RTN_UNICAST)}}
}
