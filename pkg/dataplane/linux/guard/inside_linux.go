package guard

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Rules look up the source of the packet inside in these sets. nft can load a rule that
// looks up bytes at an offset only if the set describes its key by such an expression
// ("typeof @th,336,32"). The kernel stores the description for nft. The library for
// nftables cannot write it.

// insideSet is one of these sets.
type insideSet struct {
	name   string
	v6     bool
	sender bool // the key has the source of the outer packet in front
}

// insideSets are those that the rules need.
func (g *Guard) insideSets() []insideSet {
	all := []insideSet{{name: nodes4}, {name: nodes6, v6: true}}
	for _, m := range slices.SortedFunc(maps.Keys(g.masks), compareMasks) {
		all = append(all, insideSet{m.set(), m.v6, true})
	}
	return all
}

// makeInsideSets makes those sets that the kernel lacks, in one transaction.
func (g *Guard) makeInsideSets() error {
	missing := slices.DeleteFunc(g.insideSets(), func(s insideSet) bool { return g.made[s.name] })
	if len(missing) == 0 {
		return nil
	}
	batch := func(kind netlink.HeaderType) netlink.Message {
		return netlink.Message{Header: netlink.Header{Type: kind, Flags: netlink.Request}, Data: []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES}}
	}
	all := []netlink.Message{batch(unix.NFNL_MSG_BATCH_BEGIN)}
	for i, s := range missing {
		set, err := s.message(g.table, uint32(i+1))
		if err != nil {
			return err
		}
		all = append(all, set)
	}
	if _, err := g.conn.socket.SendMessages(append(all, batch(unix.NFNL_MSG_BATCH_END))); err != nil {
		return fmt.Errorf("make sets of table %s: %w", g.table.Name, err)
	}
	for _, s := range missing { // if one is refused, the kernel makes none
		if _, err := g.conn.socket.Receive(); err != nil {
			return fmt.Errorf("make set %s of table %s: %w", s.name, g.table.Name, err)
		}
	}
	for _, s := range missing {
		g.made[s.name] = true
	}
	return nil
}

// message asks for the set.
func (s insideSet) message(t *nftables.Table, id uint32) (netlink.Message, error) {
	number := func(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }
	// Types of nft. A concatenation has six bits for each of its parts.
	const ipv4, ipv6, integer, bits = 7, 8, 4, 6
	key, size := uint32(integer), uint32(4)
	if s.v6 {
		size = 16
	}
	switch {
	case s.sender && s.v6:
		key, size = ipv6<<bits|integer, 2*size
	case s.sender:
		key, size = ipv4<<bits|integer, 2*size
	}
	attrs, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: unix.NFTA_SET_TABLE, Data: append([]byte(t.Name), 0)},
		{Type: unix.NFTA_SET_NAME, Data: append([]byte(s.name), 0)},
		{Type: unix.NFTA_SET_FLAGS, Data: number(0)},
		{Type: unix.NFTA_SET_KEY_TYPE, Data: number(key)},
		{Type: unix.NFTA_SET_KEY_LEN, Data: number(size)},
		{Type: unix.NFTA_SET_ID, Data: number(id)},
		{Type: unix.NFTA_SET_USERDATA, Data: s.keyDescription()},
	})
	return netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWSET, Flags: netlink.Request | netlink.Acknowledge | netlink.Create},
		Data:   append([]byte{byte(t.Family), unix.NFNETLINK_V0, 0, 0}, attrs...),
	}, err
}

// keyDescription describes the key as nft does: the source of the packet, if it is a part
// of the key, and bytes behind the transport header. Their offset need not be that of the rule; it is that of
// vxlan here. The numbers are nft's own.
func (s insideSet) keyDescription() []byte {
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
	sender := expression(payload, number(0, header), number(1, saddr))
	inside := expression(payload, number(0, 0), number(1, 0), number(2, transport), number(3, 8*(vxlan+offset)), number(4, 8*size))
	key := inside
	if s.sender {
		key = expression(concatenation, field(0, sender...), field(1, inside...))
	}
	return append(number(keyByteOrder, 0), field(keyTypeof, key...)...)
}
