package guard

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

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

// element is one of a set: the set's code, and the key as the kernel compares it, which is
// an address, an owner, or the name of an interface. It is one string, since there are
// six of them for each peer.
type element string

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

// elements is the store of several sets.
type elements struct {
	g    *Guard
	name string
	sets func() []string // that List lists
}

// Name implements reconcile.Store.
func (e elements) Name() string { return e.name }

// List implements reconcile.Store.
func (e elements) List(context.Context) (map[element]struct{}, error) {
	all := map[element]struct{}{}
	for _, set := range e.sets() {
		list, err := e.g.conn.GetSetElements(e.g.set(set))
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return nil, fmt.Errorf("set %s: %w", set, err)
		}
		code := codeOf(set)
		for _, has := range list {
			all[newElement(code, has.Key...)] = struct{}{}
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
func (e elements) Set(_ context.Context, entries []reconcile.Entry[element, struct{}]) []error {
	return e.change(entries, e.g.conn.SetAddElements)
}

// Delete implements reconcile.Store. Elements that somebody else has deleted meanwhile
// make the kernel refuse them all; the next pass lists the set.
func (e elements) Delete(_ context.Context, entries []reconcile.Entry[element, struct{}]) []error {
	return e.change(entries, e.g.conn.SetDeleteElements)
}

// atOnce is the number of elements in one transaction, whose message then has less than
// the 64 KiB that the length of an attribute can be.
const atOnce = 1000

// change calls do for all entries, in messages of limited size. It returns nil if none failed.
func (e elements) change(entries []reconcile.Entry[element, struct{}], do func(*nftables.Set, []nftables.SetElement) error) (errs []error) {
	keys := make([]nftables.SetElement, 0, min(len(entries), atOnce))
	for start := 0; start < len(entries); start += atOnce {
		end := min(start+atOnce, len(entries))
		err := e.changeOnce(entries[start:end], keys, do)
		if err != nil && errs == nil {
			errs = make([]error, len(entries))
		}
		for i := start; err != nil && i < end; i++ {
			errs[i] = err
		}
	}
	return errs
}

// changeOnce calls do for each set. keys is memory to use.
func (e elements) changeOnce(entries []reconcile.Entry[element, struct{}], keys []nftables.SetElement, do func(*nftables.Set, []nftables.SetElement) error) error {
	lists := map[setCode][]element{}
	for _, entry := range entries {
		lists[entry.Key.code()] = append(lists[entry.Key.code()], entry.Key)
	}
	for _, list := range lists {
		keys = keys[:0]
		for _, key := range list {
			keys = append(keys, nftables.SetElement{Key: key.key()})
		}
		if err := do(e.g.set(list[0].set()), keys); err != nil {
			return err
		}
	}
	return e.g.flush("change the sets")
}
