package guard

import (
	"encoding/binary"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Where connections are tracked, datagrams are whole before the rules see them. Elsewhere
// a sender can divide one such that its first fragment has a UDP header and nothing of
// what the rules look at. No node sends such fragments.

// leastFragment is more than the headers of any outer packet and of the packet inside
// have, and less than what any node sends in a first fragment, in bytes.
const leastFragment = 256

// short matches first fragments that may lack headers; v6 selects the family.
func short(v6 bool) []expr.Any {
	family := []expr.Any{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}}
	if v6 {
		const fragment = 44 // the extension header, RFC 8200
		family = append(family, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.NFPROTO_IPV6}},
			&expr.Exthdr{DestRegister: 1, Type: fragment, Len: 1, Flags: unix.NFT_EXTHDR_F_PRESENT, Op: expr.ExthdrOpIpv6},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{1}})
	} else {
		family = append(family, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.NFPROTO_IPV4}},
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 6, Len: 2},
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 2, Mask: []byte{0x20, 0}, Xor: []byte{0, 0}}, // more fragments
			&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{0, 0}})
	}
	return append(family, &expr.Meta{Key: expr.MetaKeyLEN, Register: 1},
		&expr.Byteorder{SourceRegister: 1, DestRegister: 1, Op: expr.ByteorderHton, Len: 4, Size: 4},
		&expr.Cmp{Op: expr.CmpOpLt, Register: 1, Data: binary.BigEndian.AppendUint32(nil, leastFragment)})
}
