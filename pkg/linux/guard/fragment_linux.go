package guard

import (
	"encoding/binary"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// The kernel reassembles IPv4 datagrams for this node before the rules see them, and all
// datagrams where connections are tracked. Elsewhere a sender can divide a datagram such
// that its first fragment has a UDP header and nothing of what the rules look at. No node
// sends such fragments.

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
