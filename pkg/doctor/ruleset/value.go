package ruleset

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// num is a number or an address, big-endian, so that bytes.Compare orders it. Nums do not
// tell the families of addresses apart: the table or operand of a rule has one (ofFamily).
type num [16]byte

// number returns n as a num.
func number(n uint64) (v num) {
	binary.BigEndian.PutUint64(v[8:], n)
	return v
}

// highest is the last number.
var highest = num(bytes.Repeat([]byte{0xff}, len(num{})))

// low returns the last 64 bits.
func (n num) low() uint64 { return binary.BigEndian.Uint64(n[8:]) }

// address returns an address as a num, with leading zero bytes.
func address(a netip.Addr) (v num) {
	raw := a.AsSlice()
	copy(v[len(v)-len(raw):], raw)
	return v
}

// mask clears the bits that are not in m.
func (n num) mask(m num) num {
	for i := range n {
		n[i] &= m[i]
	}
	return n
}

// less compares two nums as numbers.
func less(a, b num) bool { return bytes.Compare(a[:], b[:]) < 0 }

// span is a range with both ends.
type span struct{ low, high num }

// point returns the span of one num.
func point(n num) span { return span{n, n} }

// prefix returns the addresses of a prefix.
func prefix(p netip.Prefix) span {
	p = p.Masked()
	high := p.Addr().AsSlice()
	for i := p.Bits(); i < len(high)*8; i++ {
		high[i/8] |= 1 << (7 - i%8)
	}
	last, _ := netip.AddrFromSlice(high)
	return span{address(p.Addr()), address(last)}
}

// ports returns the ports that Packet names: one, or with 0 any.
func ports(port int) span {
	if port == 0 {
		return span{number(1), number(1<<16 - 1)}
	}
	return point(number(uint64(port)))
}

// within tells which values of a span lie in one of the others, which are sorted by
// their low ends and may overlap.
func (s span) within(others []span) answer {
	next, overlaps := s.low, false // next: the first value of s that no span so far has
	for _, o := range others {
		if less(o.high, s.low) || less(s.high, o.low) {
			continue
		}
		overlaps = true
		if less(next, o.low) {
			return some
		}
		if !less(o.high, s.high) {
			return yes
		}
		if !less(o.high, next) {
			next = o.high.next()
		}
	}
	if overlaps {
		return some
	}
	return no
}

// next returns n + 1.
func (n num) next() num {
	for i := len(n) - 1; i >= 0; i-- {
		if n[i]++; n[i] != 0 {
			break
		}
	}
	return n
}

// domain is how rules write the values of an operand: which names stand for numbers,
// see names.
type domain int

const (
	numbers domain = iota
	addresses
	protocols
	states      // ct state, bits
	statuses    // ct status, bits
	families    // nfproto
	etherTypes  // meta protocol
	routeTypes  // fib type
	packetTypes // meta pkttype
	directions  // ct direction
	devices     // names, with a pattern that ends in "*"
	booleans
)

// Numbers of the kernel's ct state (nft prints the bits with -n).
const (
	stateNew       = 8
	stateUntracked = 64
)

// Values of names, by domain. Those of protocols are in IANA's registry, the others in the
// kernel's headers: nf_conntrack_common.h (states, statuses), nf_conntrack_tuple_common.h
// (directions), netfilter.h, if_ether.h, rtnetlink.h and if_packet.h. Booleans are compared
// with whether a header or a route exists.
var names = map[domain]map[string]uint64{
	protocols: {"icmp": 1, "igmp": 2, "ipencap": 4, "ipv4": 4, "ipip": 4, "tcp": 6, "udp": 17, "dccp": 33, "ipv6": 41,
		"gre": 47, "esp": 50, "ah": 51, "icmpv6": 58, "ipv6-icmp": 58, "ospf": 89, "ospfigp": 89, "pim": 103, "comp": 108,
		"ipcomp": 108, "vrrp": 112, "sctp": 132, "udplite": 136},
	states:      {"invalid": 1, "established": 2, "related": 4, "new": stateNew, "untracked": stateUntracked},
	statuses:    {"expected": 1, "seen-reply": 2, "assured": 4, "confirmed": 8, "snat": 16, "dnat": 32, "dying": 512},
	families:    {"ipv4": 2, "ipv6": 10},
	etherTypes:  {"ip": 0x0800, "ip6": 0x86dd, "arp": 0x0806, "vlan": 0x8100, "8021q": 0x8100},
	routeTypes:  {"unicast": 1, "local": 2, "broadcast": 3, "anycast": 4, "multicast": 5, "blackhole": 6, "unreachable": 7, "prohibit": 8},
	packetTypes: {"host": 0, "unicast": 0, "broadcast": 1, "multicast": 2, "other": 3},
	directions:  {"original": 0, "reply": 1},
	booleans:    {"missing": 0, "exists": 1},
}

// value is what a rule compares a field with: a span, or a device's name, in which
// "*" at the end stands for anything.
type value struct {
	span
	device string
	bad    bool // it could not be parsed
}

// matches tells for which packets a field has the value. The answer is some if the packets
// differ in the field, or may (f.free, AnyDevice): the condition certainly holds for a part
// of them. It is unknown if all packets have one value that is not known (f.open: bits of a
// mark), or if the rule's value could not be parsed.
func (v value) matches(f field) answer {
	switch {
	case f.free:
		return some
	case v.bad:
		return unknown
	case f.isDevice && f.device == AnyDevice && v.device != "*": // "*" is every device
		return some
	case f.isDevice:
		start, pattern := strings.CutSuffix(v.device, "*")
		return answerOf(f.device == v.device || pattern && strings.HasPrefix(f.device, start))
	case f.open != 0 && v.low == v.high && (f.low.low()^v.low.low())&^f.open != 0: // a known bit differs
		return no
	case f.open != 0: // it depends on bits that are not known
		return unknown
	}
	return f.within([]span{v.span})
}

// parseNumber parses a number as nft and iptables print it: decimal, or hexadecimal with 0x.
func parseNumber(text string) (num, bool) {
	n, err := strconv.ParseUint(text, 0, 64)
	return number(n), err == nil
}

// rangeSign separates the ends of a range in the output of iptables-save, by domain.
var rangeSign = map[domain]string{addresses: "-", numbers: ":"}

// parseWord parses a value that is written as one word.
func parseWord(d domain, text string) value {
	if d == devices {
		return value{device: text}
	}
	if n, ok := names[d][strings.ToLower(text)]; ok {
		return value{span: point(number(n))}
	}
	if first, last, isRange := strings.Cut(text, rangeSign[d]); isRange && rangeSign[d] != "" { // Cut finds "" in any text
		low, high := parseWord(d, first), parseWord(d, last)
		return value{span: span{low.low, high.high}, bad: low.bad || high.bad}
	}
	if d == addresses {
		if p, err := netip.ParsePrefix(text); err == nil {
			return value{span: prefix(p)}
		}
		a, err := netip.ParseAddr(text)
		return value{span: point(address(a)), bad: err != nil}
	}
	n, ok := parseNumber(text)
	return value{span: point(n), bad: !ok}
}

// sortSpans sorts the spans of values for within.
func sortSpans(spans []span) {
	slices.SortFunc(spans, func(a, b span) int { return bytes.Compare(a.low[:], b.low[:]) })
}
