package guard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"golang.org/x/sys/unix"

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

// fixedSets are those of a type that the library for nftables can write.
var fixedSets = []string{peers4, peers6, outsiders4, outsiders6, pods}

// set returns one of the sets, which the kernel knows by its name.
func (g *Guard) set(name string) *nftables.Set {
	set := &nftables.Set{Table: g.table, Name: name}
	switch name {
	case peers4, outsiders4:
		set.KeyType = nftables.TypeIPAddr
	case peers6, outsiders6:
		set.KeyType = nftables.TypeIP6Addr
	case pods:
		set.KeyType, set.KeyByteOrder = nftables.TypeIFName, binaryutil.NativeEndian // with which nft prints names
	}
	if name == outsiders4 || name == outsiders6 {
		set.Dynamic, set.HasTimeout, set.Size = true, true, maxOutsiders
	}
	return set
}

// namedSets are those of elements, except the sets of networks.
var namedSets = []string{peers4, peers6, nodes4, nodes6, pods}

// element is what the sets have of one address, network or owner, or of one interface: the
// code of a set, and the key as the kernel compares it. It is one string, since there are
// three of them for each peer. Several sets may have it, see parts.
type element string

// parts are some of the sets that may have an element: bit i is part i of element.parts.
type parts uint8

const (
	firstSet  parts = 1 << iota // the set that the element's code names
	secondSet                   // of an address: the set of nodes; of a network: that of networks inside
	thirdSet                    // of an address: the set of owners, as its own owner
)

// String is for messages about elements that somebody else has changed.
func (p parts) String() string {
	return fmt.Sprintf("an element of %d sets", bits.OnesCount8(uint8(p)))
}

// part is one element of a set of the kernel.
type part struct {
	set setCode
	key []byte
}

// parts returns all parts that the element may have.
func (e element) parts() []part {
	all := []part{{e.code(), e.key()}}
	if m, isNetwork := e.mask(); isNetwork && m.kind == subnets {
		return append(all, part{mask{inside, m.v6, m.bits}.code(), e.key()})
	}
	for _, v6 := range []bool{false, true} {
		if e.code() == peerSets[v6] {
			self := mask{owners, v6, 8 * len(e.key())}
			return append(all, part{nodeSets[v6], e.key()}, part{self.code(), slices.Concat(e.key(), e.key())})
		}
	}
	return all
}

// elementOf is the inverse of element.parts.
func elementOf(p part) (e element, of parts) {
	m, isNetwork := p.set.mask()
	half := len(p.key) / 2
	switch {
	case p.set == nodeSets[false], p.set == nodeSets[true]:
		return newElement(peerSets[p.set == nodeSets[true]], p.key...), secondSet
	case isNetwork && m.kind == inside:
		return newElement(mask{subnets, m.v6, m.bits}.code(), p.key...), secondSet
	case isNetwork && m.kind == owners && m.bits == 8*half && bytes.Equal(p.key[:half], p.key[half:]):
		return newElement(peerSets[m.v6], p.key[:half]...), thirdSet
	}
	return newElement(p.set, p.key...), firstSet
}

// setCode is the name of a set in two bytes: 0 and an index of namedSets, or the code of a
// mask.
type setCode [2]byte

// codeOf returns the code of a set that elements have.
func codeOf(set string) setCode {
	if m, isNetworks := maskOf(set); isNetworks {
		return m.code()
	}
	return setCode{0, byte(slices.Index(namedSets, set))}
}

func newElement(set setCode, key ...byte) element {
	return element(append(append(make([]byte, 0, 64), set[:]...), key...))
}

func (e element) code() setCode { return setCode{e[0], e[1]} }
func (e element) key() []byte   { return []byte(e[2:]) }

// nameOf is the inverse of codeOf.
func nameOf(set setCode) string {
	if m, isNetworks := set.mask(); isNetworks {
		return m.set()
	}
	return namedSets[set[1]]
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
	if nameOf(e.code()) == pods {
		return strings.TrimRight(string(key), "\x00")
	}
	a, _ := netip.AddrFromSlice(key)
	return a.String()
}

// elements is the store of several sets.
type elements struct {
	g    *Guard
	name string
	sets func() []string // that List lists
}

// Name implements reconcile.Store.
func (e elements) Name() string { return e.name }

// List implements reconcile.Store.
func (e elements) List(context.Context) (map[element]parts, error) {
	all := map[element]parts{}
	for _, set := range e.sets() {
		list, err := e.g.conn.GetSetElements(e.g.set(set))
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return nil, fmt.Errorf("set %s: %w", set, err)
		}
		code := codeOf(set)
		for _, has := range list {
			e, of := elementOf(part{code, has.Key})
			all[e] |= of
		}
	}
	return all, nil
}

// peerSets returns the names of the sets of peers and their networks.
func (g *Guard) peerSets() []string {
	all := []string{peers4, peers6}
	for _, s := range g.describedSets() {
		all = append(all, s.name)
	}
	return all
}

// Set implements reconcile.Store.
func (e elements) Set(_ context.Context, entries []entry) []error {
	return e.change(entries, func(n entry) (add, remove parts) {
		has, _ := e.g.peers.Actual(n.Key)
		return n.Value &^ has, has &^ n.Value
	})
}

// Delete implements reconcile.Store. Elements that somebody else has deleted meanwhile
// make the kernel refuse them all; the next pass lists the set.
func (e elements) Delete(_ context.Context, entries []entry) []error {
	return e.change(entries, func(n entry) (add, remove parts) { return 0, n.Value })
}

type entry = reconcile.Entry[element, parts]

// atOnce is the number of elements in one transaction, whose messages, one for each set,
// then have less than the 64 KiB that the length of an attribute can be.
const atOnce = 500

// change adds and removes parts of all entries, in messages of limited size.
func (e elements) change(entries []entry, of func(entry) (add, remove parts)) (errs []error) {
	keys := make([]nftables.SetElement, 0, min(len(entries), atOnce))
	for start := 0; start < len(entries); start += atOnce {
		end := min(start+atOnce, len(entries))
		err := e.changeOnce(entries[start:end], keys, of)
		if err != nil && errs == nil {
			errs = make([]error, len(entries))
		}
		for i := start; err != nil && i < end; i++ {
			errs[i] = err
		}
	}
	return errs
}

// changeOnce makes one transaction. keys is memory to use.
func (e elements) changeOnce(entries []entry, keys []nftables.SetElement, of func(entry) (add, remove parts)) error {
	type change struct {
		set setCode
		add bool
	}
	lists := map[change][][]byte{}
	for _, n := range entries {
		add, remove := of(n)
		for i, p := range n.Key.parts() {
			if bit := parts(1 << i); (add|remove)&bit != 0 {
				c := change{p.set, add&bit != 0}
				lists[c] = append(lists[c], p.key)
			}
		}
	}
	for c, list := range lists {
		keys = keys[:0]
		for _, key := range list {
			keys = append(keys, nftables.SetElement{Key: key})
		}
		do := e.g.conn.SetDeleteElements
		if c.add {
			do = e.g.conn.SetAddElements
		}
		if err := do(e.g.set(nameOf(c.set)), keys); err != nil {
			return err
		}
	}
	return e.g.flush("change the sets")
}
