package guard

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"flannel/pkg/linux/rtnetlink"
)

// Rules look up the source of the packet inside in the sets of nodes, owners and inside. The program
// nft, by which people list the table and load it again, can load a rule that looks up bytes at an
// offset only if the set describes its key by such an expression ("typeof @th,336,32"). The kernel
// stores the description for nft, and ignores it. The library for nftables cannot write it. The rule
// spoofed loads the source of the packet itself as bytes, too (see rawSource).

// describedSet is one of these sets. Its key is the source of the packet inside, or a
// network of it.
type describedSet struct {
	name   string
	v6     bool
	sender bool // the key begins with the source of the packet itself
}

// describedSets are those that the rules need: of nodes, and of all masks that paths use, or used
// before the next Prune.
func (g *Guard) describedSets() []describedSet {
	all := []describedSet{{name: nodes4}, {name: nodes6, v6: true}}
	for _, m := range g.sortedMasks() {
		all = append(all, describedSet{m.set(), m.v6, m.kind == owners})
	}
	return all
}

// makeDescribedSets makes those sets that the kernel lacks, as far as is known, in one transaction.
// Sets that exist keep their elements. fill calls it before it adds elements.
func (g *Guard) makeDescribedSets() error {
	missing := slices.DeleteFunc(g.describedSets(), func(s describedSet) bool { return g.made[s.name] })
	if len(missing) == 0 {
		return nil
	}
	err := g.conn.transact(len(missing), func(m rtnetlink.Message, i int) rtnetlink.Message {
		return missing[i].write(m, g.table, uint32(i+1))
	})
	if err != nil { // the kernel has made none of them
		return fmt.Errorf("make the sets of table %s: %w", g.table.Name, err)
	}
	for _, s := range missing {
		g.made[s.name] = true
	}
	return nil
}

// write appends a message that makes the set. id is a number of the set within the transaction.
func (s describedSet) write(m rtnetlink.Message, t *nftables.Table, id uint32) rtnetlink.Message {
	number := func(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }
	// Types of nft. A concatenation has six bits for each of its parts.
	const ipv4, ipv6, integer, bits = 7, 8, 4, 6
	address, length := uint32(ipv4), uint32(4)
	if s.v6 {
		address, length = ipv6, 16
	}
	key, size := uint32(integer), length
	if s.sender {
		key, size = address<<bits|integer, 2*length
	}
	return beginChange(m, t, unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE).
		Attr(unix.NFTA_SET_TABLE, append([]byte(t.Name), 0)).
		Attr(unix.NFTA_SET_NAME, append([]byte(s.name), 0)).
		Attr(unix.NFTA_SET_FLAGS, number(0)).
		Attr(unix.NFTA_SET_KEY_TYPE, number(key)).
		Attr(unix.NFTA_SET_KEY_LEN, number(size)).
		Attr(unix.NFTA_SET_ID, number(id)).
		Attr(unix.NFTA_SET_USERDATA, s.keyDescription())
}

// keyDescription describes the key as nft does: bytes behind the transport header, after
// the source of the packet if that is a part of the key. The offset of the bytes need not be
// that of the rule; it is that of vxlan here. The numbers are nft's own.
func (s describedSet) keyDescription() []byte {
	field := func(kind byte, data ...byte) []byte { return append([]byte{kind, byte(len(data))}, data...) }
	number := func(kind byte, n uint32) []byte { return field(kind, binary.NativeEndian.AppendUint32(nil, n)...) }
	expression := func(kind uint32, parts ...[]byte) []byte {
		return append(number(0, kind), field(1, slices.Concat(parts...)...)...)
	}
	const payload, concatenation, keyByteOrder, keyTypeof = 7, 13, 0, 3
	const ip, ip6, transport, saddr4, saddr6 = 12, 13, 3, 11, 8
	header, saddr, offset, size := uint32(ip), uint32(saddr4), source.offset4, uint32(4)
	if s.v6 {
		header, saddr, offset, size = ip6, saddr6, source.offset6, 16
	}
	const vxlan = 8 + 8 + 14 // bytes in front of the packet inside
	key := expression(payload, number(0, 0), number(1, 0), number(2, transport), number(3, 8*(vxlan+offset)), number(4, 8*size))
	if s.sender {
		sender := expression(payload, number(0, header), number(1, saddr))
		key = expression(concatenation, field(0, sender...), field(1, key...))
	}
	return append(number(keyByteOrder, 0), field(keyTypeof, key...)...)
}
