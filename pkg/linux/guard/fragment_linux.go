package guard

import (
	"encoding/binary"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// How fragments of outer packets are judged. The kernel puts the fragments of a datagram
// together before or behind the chains for outer packets, arriving and leaving:
//
//	datagram                   connections are tracked   not tracked
//	IPv4, for this node        before                    before
//	IPv6, for this node        before                    behind
//	either, through this node  before                    by its receiver
//
// What was put together before is judged as a whole. Otherwise the first fragment is judged,
// without which there is no datagram, and the others pass: they have no port. Connections
// are tracked as soon as any rule of the host needs that, such as those of kube-proxy.
//
// A sender can divide a datagram such that its first fragment has nothing of what the rules
// look at, or, with options of IPv6, no port either, or no known protocol. No node sends such
// fragments. RFC 8200 (section 4.5) forbids those without a port. Linux 6.1 to 6.18 discard most
// of them, but take those that end between two headers of options.

// leastFragment is more than the headers of any outer packet and of the packet inside
// have without options of IPv6, and less than what any node sends in a first fragment, in
// bytes.
const leastFragment = 256

// fragmentHeader is the number of this extension header (RFC 8200).
const fragmentHeader = 44

// incomplete returns what matches first fragments that may lack headers. Options of IPv6,
// before or behind the header of the fragment, can have any length; those of IPv4 cannot.
func incomplete() [][]expr.Any {
	const nextHeader = 6 // offset in the header of IPv6
	before := append(isFragment6(), network(nextHeader, 1), unequal(fragmentHeader))
	behind := append(isFragment6(),
		&expr.Exthdr{DestRegister: 1, Type: fragmentHeader, Len: 1, Op: expr.ExthdrOpIpv6}, // what follows it
		unequal(unix.IPPROTO_UDP))
	return [][]expr.Any{short(false), short(true), before, behind}
}

// isFragment6 matches fragments of IPv6.
func isFragment6() []expr.Any {
	return append(ofFamily(true),
		&expr.Exthdr{DestRegister: 1, Type: fragmentHeader, Len: 1, Flags: unix.NFT_EXTHDR_F_PRESENT, Op: expr.ExthdrOpIpv6}, equal(1))
}

// firstFragment6 matches first fragments of IPv6.
func firstFragment6() []expr.Any {
	return append(ofFamily(true),
		&expr.Exthdr{DestRegister: 1, Type: fragmentHeader, Offset: 2, Len: 2, Op: expr.ExthdrOpIpv6}, // 13 bits of offset, and 3 others
		masked(1, 0xff, 0xf8), equal(0, 0))
}

// short matches first fragments that are too short; v6 selects the family.
func short(v6 bool) []expr.Any {
	fragment := isFragment6()
	if !v6 {
		const moreFragments = 0x20
		fragment = append(ofFamily(false), network(6, 2), masked(1, moreFragments, 0), unequal(0, 0))
	}
	return append(fragment, &expr.Meta{Key: expr.MetaKeyLEN, Register: 1},
		&expr.Byteorder{SourceRegister: 1, DestRegister: 1, Op: expr.ByteorderHton, Len: 4, Size: 4},
		&expr.Cmp{Op: expr.CmpOpLt, Register: 1, Data: binary.BigEndian.AppendUint32(nil, leastFragment)})
}
