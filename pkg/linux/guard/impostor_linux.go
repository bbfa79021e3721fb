package guard

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"iter"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"flannel/pkg/dataplane"
)

// What the rule impostor checks: the packet inside of an outer packet has to be from the subnet
// of the node that has sent it, or from one of that node's own addresses. For each prefix length of
// such networks, there is a set (kind owners). In most clusters, there are two lengths: that of the
// subnets, and that of a single address. A set has an element for each sender and each network from
// which the sender may send: the sender, and the base address of the network. The sets have no
// intervals, so that the kernel looks up one hash for each length.
//
// The addresses inside are at fixed distances from the transport header, behind headers
// without options. (The expression "inner" of kernels since 6.2 would find them, too.)

// mask is the prefix length of networks of a family, and what they are for. There is a set for each
// mask, such as owners4-24.
type mask struct {
	kind string // owners or inside
	v6   bool
	bits int
}

// The kinds of sets of networks.
const (
	owners = "owners" // a sender, and a network that is its own
	inside = "inside" // the subnets of the peers
)

// of returns the mask of the set that has the network, among the sets of a kind.
func of(kind string, p netip.Prefix) mask { return mask{kind, p.Addr().Is6(), p.Bits()} }

// set is the name of the set of networks of this length.
func (m mask) set() string { return fmt.Sprintf("%s%d-%d", m.kind, m.family(), m.bits) }

func (m mask) family() int {
	if m.v6 {
		return 6
	}
	return 4
}

// maskOf is the inverse of mask.set; ok is false if the set is another one.
func maskOf(set string) (m mask, ok bool) {
	for _, m.kind = range kindsOfSets {
		var family int
		if n, _ := fmt.Sscanf(set, m.kind+"%d-%d", &family, &m.bits); n == 2 {
			m.v6 = family == 6
			return m, m.set() == set
		}
	}
	return mask{}, false
}

// kindsOfSets are in the order of their codes.
var kindsOfSets = []string{owners, inside}

// code is the code of the set: the kind, from 1 on, with the family in the highest bit,
// and the length.
func (m mask) code() setCode {
	kind := byte(1 + slices.Index(kindsOfSets, m.kind))
	if m.v6 {
		kind |= 0x80
	}
	return setCode{kind, byte(m.bits)}
}

// mask is the inverse of mask.code; ok is false if the set is another one.
func (c setCode) mask() (m mask, ok bool) {
	kind := c[0] &^ 0x80
	if kind == 0 {
		return mask{}, false
	}
	return mask{kindsOfSets[kind-1], c[0] != kind, int(c[1])}, true
}

func compareMasks(a, b mask) int {
	return cmp.Or(strings.Compare(a.kind, b.kind), a.family()-b.family(), a.bits-b.bits)
}

// lookup appends to the expressions key, which load a key from register 1 on, those that look it up in
// the set. The last part of the key is an address, in the given register: its bits behind the prefix
// length are cleared first.
func (m mask) lookup(key []expr.Any, register uint32) []expr.Any {
	if _, size := source.at(m.v6); m.bits < 8*int(size) {
		key = append(key, masked(register, net.CIDRMask(m.bits, 8*int(size))...))
	}
	return append(key, &expr.Lookup{SourceRegister: 1, SetName: m.set()})
}

// sendersOf yields the addresses from which the peer at the end of a path sends outer packets: Via,
// its address on the underlay, and further ones that its lease names.
func sendersOf(p *dataplane.Path) iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		if !yield(p.Via) {
			return
		}
		for a := range p.Sources.All() {
			if a != p.Via && !yield(a) {
				return
			}
		}
	}
}

// forElements calls do with the elements that the sets have for a path: five if the peer sends
// from one address. It allocates no slice, because a start has tens of thousands of paths.
func forElements(p *dataplane.Path, do func(element)) {
	host := func(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
	_, encrypted := p.Encap.(dataplane.WireGuardPeer)
	do(newElement(of(inside, p.Dst).code(), p.Dst.Masked().Addr().AsSlice()...))
	for a := range sendersOf(p) {
		do(peer(a))
		do(node(a))
		// With WireGuard, the key says whose packets a peer may send. Sets of owners have keys of one family.
		if encrypted || a.Is6() != p.Dst.Addr().Is6() {
			continue
		}
		do(owner(a, p.Dst))
		do(owner(a, host(p.Via)))
		if a != p.Via {
			do(owner(a, host(a)))
		}
	}
}

// The codes of the sets of addresses, by whether these are of IPv6.
var (
	peerSets = map[bool]setCode{false: codeOf(peers4), true: codeOf(peers6)}
	nodeSets = map[bool]setCode{false: codeOf(nodes4), true: codeOf(nodes6)}
)

// peer is an element of a set of peers.
func peer(sender netip.Addr) element { return newElement(peerSets[sender.Is6()], sender.AsSlice()...) }

// node is an element of a set of nodes.
func node(sender netip.Addr) element { return newElement(nodeSets[sender.Is6()], sender.AsSlice()...) }

// owner is an element of a set of owners.
func owner(sender netip.Addr, network netip.Prefix) element {
	e := newElement(of(owners, network).code(), sender.AsSlice()...)
	copy(e[2+sender.BitLen()/8:], network.Masked().Addr().AsSlice())
	return e
}

// layout says where the packet inside of an outer packet is.
type layout struct {
	at       uint32 // its IP header, in bytes from the transport header
	ethernet bool   // the packet inside is in an Ethernet frame, which may say IPv4 or IPv6, or have a tag
}

// layout returns where the packet inside is, and false if there are no outer packets.
func (c Config) layout() (l layout, exists bool) {
	return layout{uint32(c.Outer.Header), c.Outer.Frame}, c.Outer.Protocol != 0
}

// ofFamily matches outer packets with a packet of one family inside.
func (l layout) ofFamily(v6 bool) []expr.Any {
	if !l.ethernet {
		return version(transport(l.at, 1), v6)
	}
	if v6 {
		return l.etherType(unix.ETH_P_IPV6)
	}
	return l.etherType(unix.ETH_P_IP)
}

// etherType matches outer packets with a frame of this type. The type is the last part of the frame's header.
func (l layout) etherType(number uint16) []expr.Any {
	return []expr.Any{transport(l.at-2, 2), equal(binary.BigEndian.AppendUint16(nil, number)...)}
}

// source loads the source of the packet inside into a register.
func (l layout) source(v6 bool, register uint32) []expr.Any {
	offset, size := source.at(v6)
	p := transport(l.at+offset, size)
	p.DestRegister = register
	return []expr.Any{p}
}

// from matches outer packets with a packet from p inside.
func (l layout) from(p netip.Prefix) []expr.Any {
	v6 := p.Addr().Is6()
	return append(l.ofFamily(v6), compare(l.source(v6, 1), p)...)
}

// owned matches outer packets whose sender may send the packet inside: the set of m has the sender
// with the network, of that length, of the packet's source.
func (l layout) owned(m mask) []expr.Any {
	// The key is in registers that follow each other. An IPv4 address fills one register of 4 bytes, an IPv6
	// address one of 16; the first register has the number 1 in both notations.
	second := uint32(unix.NFT_REG32_01)
	if m.v6 {
		second = unix.NFT_REG_2
	}
	all := slices.Concat(l.ofFamily(m.v6), load(source, m.v6), l.source(m.v6, second))
	return m.lookup(all, second)
}

// tags are the types of frames with a tag in front of the packet's own type.
var tags = []uint16{unix.ETH_P_8021Q, unix.ETH_P_8021AD}

const tagBytes = 4 // of a tag, behind which the packet's own type follows

// isTag reports whether a type is that of a tag.
func isTag(etherType []byte) bool { return slices.Contains(tags, binary.BigEndian.Uint16(etherType)) }

// speaker is the chain for outer packets of nodes to this node. The first rule that matches decides:
// accept, or the chain of the rule impostor.
func (c Config) speaker() chain {
	who := chain{name: speaker}
	l, _ := c.layout()
	c.owners(&who, l)
	for _, s := range c.Subnets {
		who.add("of this node: the rule inner finds it", l.from(s), accept)
	}
	for _, n := range c.Networks {
		who.add("from a pod of another node", l.from(n), found(impostor))
	}
	for _, set := range []string{nodes4, nodes6} {
		v6 := set == nodes6
		who.add("from another node", l.ofFamily(v6), lookup(l.source(v6, 1), set), found(impostor))
	}
	c.tagged(&who, l)
	who.add("neither from a pod nor from a node", accept)
	return who
}

// relayed is the chain for outer packets of nodes to others through this node, such as to
// a Service that leads to the port of the tunnel. Its receiver would take them for this
// node's own, whose address they get.
func (c Config) relayed() chain {
	who := chain{name: relayed}
	l, _ := c.layout()
	c.owners(&who, l)
	for _, v6 := range []bool{false, true} {
		if l.ethernet || !v6 {
			who.add("from anybody else", l.ofFamily(v6), found(impostor))
		} // without a frame (udp, ipip), the packet inside is always IPv4
	}
	c.tagged(&who, l)
	return who
}

// owners adds rules that accept packets inside that are from the node that has sent them, or from
// Config.Sources, and before them those for fragments that lack a part of the headers (fragment_linux.go).
func (c Config) owners(who *chain, l layout) {
	who.addEach("a part of a header", incomplete(), found(impostor))
	for _, m := range c.masks {
		if m.kind == owners {
			who.add("from its own pods, or from itself", l.owned(m), accept)
		}
	}
	for _, s := range c.Sources {
		who.add("from a listed source", l.from(s), accept)
	}
}

// tagged adds a rule for frames with a tag, which should be discarded (RFC 7348, section
// 6.1).
func (c Config) tagged(who *chain, l layout) {
	if !l.ethernet {
		return
	}
	for _, tag := range tags {
		who.add("in a frame with a tag", l.etherType(tag), found(impostor))
	}
}
