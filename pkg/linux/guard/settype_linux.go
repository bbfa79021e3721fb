package guard

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"flannel/pkg/linux/rtnetlink"
)

// This file has the types of the sets, and makes the sets. The library for nftables cannot write what
// nft has to know of some of them.

// setType is the type of a set. element.key has a key of its size.
type setType struct {
	key, size uint32 // nft's number of the key's type, and the size of keys in bytes
	flags     uint32 // NFT_SET_*
	limit     uint32 // of the number of elements; 0: none
	note      []byte // what nft has to know of the key, beside its type. The kernel only stores it
}

// typeOf returns the type of a set of setNames.
func typeOf(set string) setType {
	// Types of nft. A concatenation has six bits for each of its parts.
	const integer, ipv4, ipv6, ifname, bits = 4, 7, 8, 41, 6
	m, isNetworks := maskOf(set)
	v6 := isNetworks && m.v6 || set == peers6 || set == nodes6 || set == outsiders6
	address, length := uint32(ipv4), uint32(4)
	if v6 {
		address, length = ipv6, 16
	}
	switch {
	case isNetworks && m.kind == owners:
		return setType{key: address<<bits | integer, size: 2 * length, note: keyDescription(v6, true)}
	case isNetworks, set == nodes4, set == nodes6:
		return setType{key: integer, size: length, note: keyDescription(v6, false)}
	case set == peers4, set == peers6:
		return setType{key: address, size: length}
	case set == outsiders4, set == outsiders6:
		return setType{key: address, size: length, flags: unix.NFT_SET_EVAL | unix.NFT_SET_TIMEOUT, limit: maxOutsiders}
	default: // pods
		const hostOrder = 1 // of the bytes of the key, with which nft prints names
		return setType{key: ifname, size: unix.IFNAMSIZ, note: noteNumber(noteByteOrder, hostOrder)}
	}
}

// setNames are those of the sets that the rules need, with those of all masks that paths use, or used
// before the next Prune.
func (g *Guard) setNames() []string {
	return append(g.networkSets(), peers4, peers6, outsiders4, outsiders6, pods)
}

// makeSets makes those sets that the kernel lacks, as far as is known, in one transaction.
// Sets that exist keep their elements. fill calls it before it adds elements.
func (g *Guard) makeSets() error {
	missing := slices.DeleteFunc(g.setNames(), func(set string) bool { return g.made[set] })
	if len(missing) == 0 {
		return nil
	}
	err := g.conn.transact(len(missing), func(m rtnetlink.Message, i int) rtnetlink.Message {
		m = beginChange(m, g.table, unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE).
			Attr(unix.NFTA_SET_TABLE, append([]byte(g.table.Name), 0)).
			Attr(unix.NFTA_SET_NAME, append([]byte(missing[i]), 0)).
			Attr(unix.NFTA_SET_ID, binary.BigEndian.AppendUint32(nil, uint32(i+1))) // within the transaction
		return append(m, typeOf(missing[i]).attrs()...)
	})
	if err != nil { // the kernel has made none of them
		return fmt.Errorf("make the sets of table %s: %w", g.table.Name, err)
	}
	for _, set := range missing {
		g.made[set] = true
	}
	return nil
}

// attrs are the attributes of the type in a message that makes a set.
func (t setType) attrs() rtnetlink.Message {
	encode := func(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }
	m := rtnetlink.Message(nil).
		Attr(unix.NFTA_SET_FLAGS, encode(t.flags)).
		Attr(unix.NFTA_SET_KEY_TYPE, encode(t.key)).
		Attr(unix.NFTA_SET_KEY_LEN, encode(t.size))
	if t.limit > 0 {
		m = m.Attr(unix.NFTA_SET_DESC|unix.NLA_F_NESTED, rtnetlink.Message(nil).Attr(unix.NFTA_SET_DESC_SIZE, encode(t.limit)))
	}
	if t.note != nil {
		m = m.Attr(unix.NFTA_SET_USERDATA, t.note)
	}
	return m
}

// Of the kernel's numbers for sets, those that the package unix lacks.
const (
	nftaSetDescConcat = 2        // NFTA_SET_DESC_CONCAT
	nftaSetExpr       = 17       // NFTA_SET_EXPR
	nftaSetExprs      = 18       // NFTA_SET_EXPRESSIONS
	nftSetFlags       = 1<<9 - 1 // all flags NFT_SET_* that there are, up to NFT_SET_EXPR
)

// decisive are the attributes that decide what a set does, each with the attribute that contains it. The others are
// names, numbers and notes, and what later kernels may add.
var decisive = []struct {
	name string // for the log
	path []uint16
}{
	{"flags", []uint16{unix.NFTA_SET_FLAGS}},
	{"key_type", []uint16{unix.NFTA_SET_KEY_TYPE}},
	{"key_length", []uint16{unix.NFTA_SET_KEY_LEN}},
	{"data_type", []uint16{unix.NFTA_SET_DATA_TYPE}},
	{"data_length", []uint16{unix.NFTA_SET_DATA_LEN}},
	{"object_type", []uint16{unix.NFTA_SET_OBJ_TYPE}},
	{"timeout", []uint16{unix.NFTA_SET_TIMEOUT}},
	{"gc_interval", []uint16{unix.NFTA_SET_GC_INTERVAL}},
	{"policy", []uint16{unix.NFTA_SET_POLICY}},
	{"size", []uint16{unix.NFTA_SET_DESC, unix.NFTA_SET_DESC_SIZE}},
	{"concatenation", []uint16{unix.NFTA_SET_DESC, nftaSetDescConcat}},
	{"expression", []uint16{nftaSetExpr}},
	{"expressions", []uint16{nftaSetExprs}},
}

// foreignSets describes those of the sets of kernelSets that have a name of setNames, but do not behave like the guard's:
// somebody else has made them, or a former version. It returns them by each decisive attribute that differs, with both
// values. An attribute of zeros is the same as none. The kernel refuses to make the guard's set if such a set has another
// kind of keys or data. Else it makes nothing and returns no error. The set that stays may then refuse elements (it has no
// room, or is constant), lose them (it has a timeout), or contain addresses between them (it has intervals).
func (g *Guard) foreignSets(sets map[string][]byte) map[string][]string {
	all := map[string][]string{}
	for _, name := range g.setNames() {
		if sets[name] == nil {
			continue
		}
		for _, a := range decisive {
			value := func(attrs []byte) string {
				v := rtnetlink.Attr(attrs, a.path...)
				if a.path[0] == unix.NFTA_SET_FLAGS {
					v = binary.BigEndian.AppendUint32(nil, number(v)&nftSetFlags)
				}
				return fmt.Sprintf("0x%x", bytes.TrimLeft(v, "\x00"))
			}
			if have, want := value(sets[name]), value(typeOf(name).attrs()); have != want {
				all[a.name] = append(all[a.name], fmt.Sprintf("%s: %s, want %s", name, have, want))
				delete(g.made, name) // makeSets asks the kernel, which refuses if this set is another kind of set
			}
		}
	}
	return all
}

// noteField and noteNumber return parts of a note for nft, whose numbers are nft's own.
func noteField(kind byte, data ...byte) []byte { return append([]byte{kind, byte(len(data))}, data...) }

func noteNumber(kind byte, n uint32) []byte {
	return noteField(kind, binary.NativeEndian.AppendUint32(nil, n)...)
}

const noteByteOrder = 0 // of the key

// keyDescription returns the note of a set of nodes, owners or inside, in which rules look up the source of the
// packet inside. The program nft, by which people list the table and load it again, can load a rule that looks up bytes at
// an offset only if the set describes its key by such an expression ("typeof @th,336,32"): bytes behind the transport
// header, after the source of the packet itself if that is a part of the key (sender). The offset need not be that of the
// rule; it is that of vxlan here.
func keyDescription(v6, sender bool) []byte {
	expression := func(kind uint32, parts ...[]byte) []byte {
		return append(noteNumber(0, kind), noteField(1, slices.Concat(parts...)...)...)
	}
	const payload, concatenation, keyTypeof = 7, 13, 3
	const ip, ip6, transport, saddr4, saddr6 = 12, 13, 3, 11, 8
	header, saddr, offset, size := uint32(ip), uint32(saddr4), source.offset4, uint32(4)
	if v6 {
		header, saddr, offset, size = ip6, saddr6, source.offset6, 16
	}
	const vxlan = 8 + 8 + 14 // bytes in front of the packet inside
	key := expression(payload, noteNumber(0, 0), noteNumber(1, 0), noteNumber(2, transport), noteNumber(3, 8*(vxlan+offset)), noteNumber(4, 8*size))
	if sender {
		from := expression(payload, noteNumber(0, header), noteNumber(1, saddr))
		key = expression(concatenation, noteField(0, from...), noteField(1, key...))
	}
	return append(noteNumber(noteByteOrder, 0), noteField(keyTypeof, key...)...)
}
