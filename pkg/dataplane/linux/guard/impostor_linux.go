package guard

import (
	"encoding/binary"
	"iter"
	"net"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"flannel/pkg/dataplane"
)

// What a node may say: the packet inside of an outer packet is from the subnet of the
// node that has sent it, or from one of that node's own addresses. The sets owners4 and
// owners6 have an element for each sender and each network of its: the sender, the base
// address of the network, and its length. They have no intervals, so that the kernel
// looks up one hash for each length that networks have, which in most clusters are two:
// that of the subnets, and that of an address.
//
// The addresses inside are at fixed distances from the transport header, behind headers
// without options. (The expression "inner" of kernels since 6.2 would find them, too.)

// mask is the length of networks of a family in a set of owners.
type mask struct {
	v6   bool
	bits int
}

// of returns the mask of a network.
func of(p netip.Prefix) mask { return mask{p.Addr().Is6(), p.Bits()} }

func compareMasks(a, b mask) int {
	if a.v6 != b.v6 {
		return map[bool]int{false: -1, true: 1}[a.v6]
	}
	return a.bits - b.bits
}

// sendersOf yields the addresses from which the peer at the end of a path sends.
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

// elementsOf returns what the sets of peers and owners have for a path.
func elementsOf(p *dataplane.Path) (all []element, masks []mask) {
	host := func(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
	_, encrypted := p.Encap.(dataplane.WireGuardPeer)
	for a := range sendersOf(p) {
		all = append(all, element(a.AsSlice()))
		if encrypted || a.Is6() != p.Dst.Addr().Is6() { // its key says whose packets it may send
			continue
		}
		networks := []netip.Prefix{p.Dst, host(p.Via)}
		if a != p.Via {
			networks = append(networks, host(a))
		}
		for _, n := range networks {
			all, masks = append(all, owner(a, n)), append(masks, of(n))
		}
	}
	return all, masks
}

// owner is an element of a set of owners.
func owner(sender netip.Addr, network netip.Prefix) element {
	key := slices.Concat(sender.AsSlice(), network.Masked().Addr().AsSlice())
	return element(append(binary.BigEndian.AppendUint16(key, uint16(network.Bits())), 0, 0)) // whole registers
}

// parseOwner is the inverse of owner.
func parseOwner(e element) (sender netip.Addr, network netip.Prefix, ok bool) {
	if len(e) != ownerBytes(false) && len(e) != ownerBytes(true) {
		return sender, network, false
	}
	size := (len(e) - 4) / 2
	sender, _ = netip.AddrFromSlice([]byte(e[:size]))
	base, _ := netip.AddrFromSlice([]byte(e[size : 2*size]))
	return sender, netip.PrefixFrom(base, int(binary.BigEndian.Uint16([]byte(e[2*size:])))), true
}

// ownerBytes is the size of an element of a set of owners.
func ownerBytes(v6 bool) int {
	if v6 {
		return 16 + 16 + 4
	}
	return 4 + 4 + 4
}

// layout says where the packet inside of an outer packet is.
type layout struct {
	at       uint32 // its IP header, in bytes from the transport header
	ethernet bool   // in a frame
}

// layout returns false if there are no outer packets.
func (c Config) layout() (l layout, exists bool) {
	const udp, vxlan, ethernet = 8, 8, 14
	switch {
	case len(c.UDP) > 0 && c.UDP[0].VNI != 0:
		return layout{udp + vxlan + ethernet, true}, true
	case len(c.UDP) > 0:
		return layout{udp, false}, true
	}
	return layout{}, c.IPIP
}

// ofFamily matches outer packets with a packet of one family.
func (l layout) ofFamily(v6 bool) []expr.Any {
	etherType, version := uint16(unix.ETH_P_IP), byte(0x40)
	if v6 {
		etherType, version = unix.ETH_P_IPV6, 0x60
	}
	if l.ethernet {
		return l.etherType(etherType)
	}
	return []expr.Any{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: l.at, Len: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 1, Mask: []byte{0xf0}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{version}}}
}

// etherType matches outer packets with such a frame.
func (l layout) etherType(number uint16) []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: l.at - 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.BigEndian.AppendUint16(nil, number)}}
}

// source loads the source of the packet inside.
func (l layout) source(v6 bool, register uint32) []expr.Any {
	p := &expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: l.at + source.offset4, Len: 4}
	if v6 {
		p.Offset, p.Len = l.at+source.offset6, 16
	}
	return []expr.Any{p}
}

// from matches outer packets with a packet from p.
func (l layout) from(p netip.Prefix) []expr.Any {
	v6 := p.Addr().Is6()
	return append(l.ofFamily(v6), compare(l.source(v6, 1), p)...)
}

// owned matches outer packets with a packet from a network of that length that the
// sender owns.
func (l layout) owned(m mask) []expr.Any {
	// The key is in registers that follow each other; the first of them is the same in both notations.
	second, third, size, set := uint32(unix.NFT_REG32_01), uint32(unix.NFT_REG32_02), 4, owners4
	if m.v6 {
		second, third, size, set = unix.NFT_REG_2, unix.NFT_REG_3, 16, owners6
	}
	all := slices.Concat(l.ofFamily(m.v6), load(source, m.v6), l.source(m.v6, second))
	if m.bits < 8*size {
		all = append(all, &expr.Bitwise{SourceRegister: second, DestRegister: second, Len: uint32(size), Mask: net.CIDRMask(m.bits, 8*size), Xor: make([]byte, size)})
	}
	length := append(binary.BigEndian.AppendUint16(nil, uint16(m.bits)), 0, 0)
	return append(all, &expr.Immediate{Register: third, Data: length}, &expr.Lookup{SourceRegister: 1, SetName: set})
}

// tags are the types of frames with a tag in front of the packet's own type.
var tags = []uint16{unix.ETH_P_8021Q, unix.ETH_P_8021AD}

const tagBytes = 4

// isTag reports whether a type is that of a tag.
func isTag(etherType []byte) bool { return slices.Contains(tags, binary.BigEndian.Uint16(etherType)) }

// speaker is the chain for outer packets of nodes.
func (c Config) speaker(accept []expr.Any) chain {
	who := chain{name: speaker}
	l, exists := c.layout()
	if !exists {
		return who
	}
	for _, v6 := range []bool{false, true} {
		who.add("a part of a header", short(v6), goTo(foundBy(Impostor)))
	}
	for _, m := range c.masks {
		who.add("from its own pods, or from itself", l.owned(m), accept)
	}
	for _, s := range c.Sources {
		who.add("from a listed source", l.from(s), accept)
	}
	for _, s := range c.Subnets {
		who.add("of this node: the rule inner finds it", l.from(s), accept)
	}
	for _, n := range c.Networks {
		who.add("from a pod of another node", l.from(n), goTo(foundBy(Impostor)))
	}
	for _, set := range []string{peers4, peers6} {
		v6 := set == peers6
		who.add("from another node", l.ofFamily(v6), lookup(l.source(v6, 1), set), goTo(foundBy(Impostor)))
	}
	if l.ethernet { // RFC 7348, section 6.1: such frames should be discarded
		for _, tag := range tags {
			who.add("in a frame with a tag", l.etherType(tag), goTo(foundBy(Impostor)))
		}
	}
	who.add("neither from a pod nor from a node", accept)
	return who
}
