package guard

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"flannel/pkg/dataplane"
	"flannel/pkg/linux/rtnetlink"
	"flannel/pkg/reconcile"
)

// The sets. There are others for networks, see type mask.
const (
	peers4 = "peers4"
	peers6 = "peers6"
	nodes4 = "nodes4" // the same addresses as in peers4, to be looked up inside of outer packets
	nodes6 = "nodes6"
	pods   = "pods"
)

// set returns one of the sets by its name, for the library for nftables, which finds it by that.
func (g *Guard) set(name string) *nftables.Set { return &nftables.Set{Table: g.table, Name: name} }

// namedSets are those of elements, except the sets of networks.
var namedSets = []string{peers4, peers6, nodes4, nodes6, pods}

// element is one of a set: the set's code, the key as the kernel compares it, and zeros up to the
// size of the longest key. The key is an address, a network's base address, an owner (the address of
// a sender, then the base address of a network from which it may send), or the name of an interface.
type element [2 + longKey]byte

// shortElement is the same for keys that are short, such as all those of IPv4 addresses. forElements
// makes five elements for each peer, so that the size of elements decides how much memory the sets take.
type shortElement [2 + shortKey]byte

// The largest sizes of keys in bytes: those of owners, which are two addresses.
const shortKey, longKey = 2 * 4, 2 * 16

// setCode is the name of a set in two bytes: 0 and an index of namedSets, or the code of a
// mask.
type setCode [2]byte

// codeOf returns the code of a set that is in namedSets or of networks; of others, it is meaningless.
func codeOf(set string) setCode {
	if m, isNetworks := maskOf(set); isNetworks {
		return m.code()
	}
	return setCode{0, byte(slices.Index(namedSets, set))}
}

// keySize returns the size of the set's keys, in bytes.
func (c setCode) keySize() int {
	m, isNetworks := c.mask()
	size := 4
	if isNetworks && m.v6 || !isNetworks && namedSets[c[1]] != peers4 && namedSets[c[1]] != nodes4 {
		size = 16 // of an IPv6 address, and of the name of an interface: unix.IFNAMSIZ
	}
	if isNetworks && m.kind == owners {
		size *= 2
	}
	return size
}

// isShort reports whether elements of the set are of type shortElement.
func (c setCode) isShort() bool { return c.keySize() <= shortKey }

// newElement returns the element with a key of keySize bytes. Without a key, it only stands for the set.
func newElement(set setCode, key ...byte) (e element) {
	copy(e[copy(e[:], set[:]):], key) // behind the code
	return e
}

func (e element) code() setCode           { return setCode{e[0], e[1]} }
func (e element) mask() (m mask, ok bool) { return e.code().mask() }
func (e element) key() []byte             { return e[2:][:e.code().keySize()] }
func (e element) short() shortElement     { return shortElement(e[:len(shortElement{})]) }
func (e element) long() element           { return e }
func (e shortElement) long() (l element)  { copy(l[:], e[:]); return l }
func (e shortElement) String() string     { return e.long().String() }

// set is the name of the set.
func (e element) set() string {
	if m, isNetwork := e.mask(); isNetwork {
		return m.set()
	}
	return namedSets[e[1]]
}

func (e element) String() string {
	key := e.key()
	if m, isNetwork := e.mask(); isNetwork {
		sender := ""
		if m.kind == owners {
			a, _ := netip.AddrFromSlice(key[:len(key)/2])
			sender, key = a.String()+" for ", key[len(key)/2:]
		}
		base, _ := netip.AddrFromSlice(key)
		return sender + netip.PrefixFrom(base, m.bits).String()
	}
	if e.set() == pods {
		return unix.ByteSliceToString(key)
	}
	a, _ := netip.AddrFromSlice(key)
	return a.String()
}

// peerTable has the elements of the sets of peers and their networks. senders are those of peers4 and
// peers6, networks all others. A packet whose sender is in peers4 or peers6 is judged by the sender's
// other elements, so that fill adds senders last, and Prune deletes them first.
type peerTable struct{ networks, senders byLength }

func newPeerTable(g *Guard) peerTable {
	return peerTable{
		networks: newByLength(g, "guard-peers", g.networkSets),
		senders:  newByLength(g, "guard-senders", func() []string { return []string{peers4, peers6} }),
	}
}

// networkSets returns the names of the sets of nodes and of networks. The latter change with g.masks,
// so that the tables ask at each list.
func (g *Guard) networkSets() []string {
	all := []string{nodes4, nodes6}
	for _, m := range g.sortedMasks() {
		all = append(all, m.set())
	}
	return all
}

func (t peerTable) of(e element) byLength {
	if code := e.code(); code == peerSets[false] || code == peerSets[true] { // peers4, peers6
		return t.senders
	}
	return t.networks
}

func (t peerTable) wanted(e element) bool { return t.of(e).wanted(e) }
func (t peerTable) want(e element)        { t.of(e).want(e) }
func (t peerTable) drop(e element)        { t.of(e).drop(e) }

// exists reports whether the kernel has the element, as far as is known.
func (t peerTable) exists(e element) bool { return t.of(e).exists(e) }

// byLength has the elements of several sets. It is two tables with one name, since short
// elements take a third of the memory.
type byLength struct {
	short *reconcile.Table[shortElement, struct{}]
	long  *reconcile.Table[element, struct{}]
}

func newByLength(g *Guard, name string, sets func() []string) byLength {
	isShort := func(set string) bool { return codeOf(set).isShort() }
	isLong := func(set string) bool { return !isShort(set) }
	shortSets := func() []string { return slices.DeleteFunc(sets(), isLong) }
	longSets := func() []string { return slices.DeleteFunc(sets(), isShort) }
	return byLength{
		short: reconcile.NewTable[shortElement, struct{}](elements[shortElement]{g, name, shortSets, element.short}),
		long:  reconcile.NewTable[element, struct{}](elements[element]{g, name, longSets, element.long}),
	}
}

func newPodTable(g *Guard) *reconcile.Table[element, struct{}] {
	sets := func() []string { return []string{pods} }
	return reconcile.NewTable[element, struct{}](elements[element]{g, "guard-pods", sets, element.long})
}

func (t byLength) tables() dataplane.Tables { return dataplane.Tables{t.short, t.long} }

func (t byLength) wanted(e element) bool {
	if e.code().isShort() {
		return t.short.Wanted(e.short())
	}
	return t.long.Wanted(e)
}

func (t byLength) want(e element) {
	if e.code().isShort() {
		t.short.Want(e.short(), struct{}{})
	} else {
		t.long.Want(e, struct{}{})
	}
}

func (t byLength) drop(e element) {
	if e.code().isShort() {
		t.short.Drop(e.short())
	} else {
		t.long.Drop(e)
	}
}

func (t byLength) exists(e element) (exists bool) {
	if e.code().isShort() {
		_, exists = t.short.Actual(e.short())
	} else {
		_, exists = t.long.Actual(e)
	}
	return exists
}

// elements is the store (the kernel's side) of the table with the elements of several sets. The
// table calls the methods, in Apply and Prune. The value of an entry is empty: an element is there or not.
type elements[E interface {
	element | shortElement
	long() element
}] struct {
	g    *Guard
	name string
	sets func() []string // names of the sets, whose elements are of type E
	of   func(element) E // converts
}

// Name implements reconcile.Store.
func (e elements[E]) Name() string { return e.name }

// List implements reconcile.Store.
func (e elements[E]) List(context.Context) (map[E]struct{}, error) {
	all := map[E]struct{}{}
	for _, set := range e.sets() {
		var listed []E
		code, size := codeOf(set), codeOf(set).keySize()
		err := e.g.listElements(set, func() { listed = listed[:0] }, func(key, _ []byte) {
			if len(key) == size { // else it is somebody else's set, which Apply replaces
				listed = append(listed, e.of(newElement(code, key...)))
			}
		})
		if err != nil { // also if somebody has deleted the set since fill made it: then the next check makes it again
			return nil, fmt.Errorf("set %s: %w", set, err)
		}
		for _, has := range listed {
			all[has] = struct{}{}
		}
	}
	return all, nil
}

// Set implements reconcile.Store.
func (e elements[E]) Set(_ context.Context, entries []reconcile.Entry[E, struct{}]) []error {
	return e.change(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, entries)
}

// Delete implements reconcile.Store. An element that somebody else has deleted meanwhile
// makes the kernel refuse the whole transaction; the next pass lists the set.
func (e elements[E]) Delete(_ context.Context, entries []reconcile.Entry[E, struct{}]) []error {
	return e.change(unix.NFT_MSG_DELSETELEM, 0, entries)
}

// atOnce is the number of elements in one transaction. The attribute with the elements then has less
// than 64 KiB, the most that its length of 16 bits can say: at most 12 + 32 bytes for each element.
const atOnce = 1000

// change sends messages of that kind about all entries, atOnce in a transaction. An error of a
// transaction is that of all its entries. It returns nil if none failed.
func (e elements[E]) change(kind, flags uint16, entries []reconcile.Entry[E, struct{}]) (errs []error) {
	for start := 0; start < len(entries); start += atOnce {
		end := min(start+atOnce, len(entries))
		err := e.changeOnce(kind, flags, entries[start:end])
		if err != nil && errs == nil {
			errs = make([]error, len(entries))
		}
		for i := start; err != nil && i < end; i++ {
			errs[i] = err
		}
	}
	return errs
}

// changeOnce sends a message for each set that has some of the entries, all in one transaction.
func (e elements[E]) changeOnce(kind, flags uint16, entries []reconcile.Entry[E, struct{}]) error {
	var sets []setCode
	for _, entry := range entries {
		if code := entry.Key.long().code(); !slices.Contains(sets, code) {
			sets = append(sets, code)
		}
	}
	err := e.g.conn.transact(len(sets), func(m rtnetlink.Message, i int) rtnetlink.Message {
		m = beginChange(m, e.g.table, kind, flags).
			Attr(unix.NFTA_SET_ELEM_LIST_TABLE, append([]byte(e.g.table.Name), 0)).
			Attr(unix.NFTA_SET_ELEM_LIST_SET, append([]byte(newElement(sets[i]).set()), 0))
		list := len(m)
		m = m.Attr(unix.NFTA_SET_ELEM_LIST_ELEMENTS|unix.NLA_F_NESTED, nil)
		for _, entry := range entries {
			if key := entry.Key.long(); key.code() == sets[i] {
				m = key.write(m)
			}
		}
		binary.NativeEndian.PutUint16(m[list:], uint16(len(m)-list)) // the attribute, empty above, contains all elements
		return m
	})
	if err != nil {
		return fmt.Errorf("change the sets of table %s: %w", e.g.table.Name, err)
	}
	return nil
}

// write appends the element as an attribute: in it is that of the key, and in that one the value.
func (e element) write(m rtnetlink.Message) rtnetlink.Message {
	key := e.key() // of a multiple of four bytes, so that nothing is padded
	attr := func(kind uint16, size int) {
		m = binary.NativeEndian.AppendUint16(m, uint16(unix.SizeofNlAttr+size))
		m = binary.NativeEndian.AppendUint16(m, kind)
	}
	attr(unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, 2*unix.SizeofNlAttr+len(key))
	attr(unix.NFTA_SET_ELEM_KEY|unix.NLA_F_NESTED, unix.SizeofNlAttr+len(key))
	return m.Attr(unix.NFTA_DATA_VALUE, key)
}

// hasCounters reports whether the table has all counters. Somebody can delete those that no rule uses, such as those of
// what is dropped while the rules only count.
func (g *Guard) hasCounters() (bool, error) {
	counted, err := g.counts.read(g.table)
	if err != nil {
		return false, fmt.Errorf("read the counters of table %s: %w", g.table.Name, err)
	}
	for _, name := range counterNames() {
		if _, exists := counted[name]; !exists {
			return false, nil
		}
	}
	return true, nil
}

// setsOf returns the names of the sets that the rules look at, which nobody can delete.
func setsOf(rules []*nftables.Rule) (names []string) {
	for _, r := range rules {
		for _, e := range r.Exprs {
			if l, isLookup := e.(*expr.Lookup); isLookup && !slices.Contains(names, l.SetName) {
				names = append(names, l.SetName)
			}
		}
	}
	return names
}
