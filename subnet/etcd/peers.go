package etcd

import (
	"context"
	"log/slog"
	"regexp"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"flannel/subnet/peerset"
)

// peers is the consumer of the keys below <prefix>/subnets/ (see feed), on the
// goroutine of Watch. It translates them into changes of a set of peers.
type peers struct {
	log    *slog.Logger
	prefix string        // <prefix>/subnets/, with the slash at the end
	own    func() string // returns our own key, which is no peer; "" before Acquire
	set    *peerset.Keeper

	// The keys that are not those of leases, or whose values are not. Anyone may write any
	// number of them, so the first maxRejects are in the set by name, and the others are
	// only counted.
	named   map[string]bool
	unnamed int
}

// handleList implements consumer. ApplyAll compares the list with the set: peers that are
// missing in the list were deleted, or, if the store was replaced, stay in use for a while.
func (p *peers) handleList(_ context.Context, snap *snapshot, replaced bool) {
	p.named, p.unnamed = map[string]bool{}, snap.unnamed
	entries := make([]peerset.Change, 0, len(snap.kvs)+1) // 1: unnamedEntry
	for _, kv := range snap.kvs {
		entries = append(entries, p.read(kv))
	}
	if replaced {
		p.log.Error("etcd store was replaced, retaining missing peers", "cause", causeStoreChanged, "present", len(snap.kvs))
	}
	p.set.ApplyAll(append(entries, p.unnamedEntry()), replaced)
}

// handle implements consumer. All events of a batch become one change of the set.
func (p *peers) handle(_ context.Context, events []*mvccpb.Event) {
	changes := make([]peerset.Change, 0, len(events)+1) // 1: unnamedEntry
	hadUnnamed := p.unnamed > 0
	inSet := map[string]bool{} // the keys of events so far: whether the set will have an entry for them
	for _, e := range events {
		key, deleted := string(e.Kv.Key), e.Type == mvccpb.DELETE
		if deleted || e.Kv.CreateRevision != e.Kv.ModRevision { // the key existed before; read counts it again
			p.removeReject(key, inSet)
		}
		c := peerset.Change{Name: key, Deleted: true}
		if !deleted {
			c = p.read(e.Kv)
		}
		inSet[key] = c.Entry != peerset.Entry{}
		changes = append(changes, c)
	}
	if hasUnnamed := p.unnamed > 0; hasUnnamed != hadUnnamed {
		changes = append(changes, p.unnamedEntry())
	}
	p.set.Apply(changes, false) // false: a replaced store begins with a list
}

// changeOwn implements feed.onNotify: our own key is another one.
func (p *peers) changeOwn() { p.set.SetOwn(p.own()) }

// read translates a key, and updates named and unnamed. Of a key that is only counted, the
// change has an empty entry.
func (p *peers) read(kv *mvccpb.KeyValue) peerset.Change {
	c := peerset.Change{Name: string(kv.Key)} // with a Lease or a Reject, or neither
	l, err := parseLease(strings.TrimPrefix(c.Name, p.prefix), kv.Value)
	switch {
	case err == nil:
		delete(p.named, c.Name)
		l.Name, l.Since = c.Name, kv.CreateRevision // the order in which leases began
		c.Lease, c.Windows = l, windowsMAC.Match(l.V4.Data)
	case len(c.Name) > maxKey || len(p.named) >= maxRejects && !p.named[c.Name]:
		p.unnamed++
	default:
		p.named[c.Name] = true
		c.Reject = err.Error()
	}
	return c
}

// removeReject removes a key that existed before from the invalid ones, if it
// was one. The set has every key that is valid or named, or will have it: inSet says so
// of the keys in the batch that handle has not applied yet.
func (p *peers) removeReject(key string, inSet map[string]bool) {
	has, inBatch := inSet[key]
	switch {
	case p.named[key]:
		delete(p.named, key)
	case !has && (inBatch || !p.set.Has(key)) && p.unnamed > 0:
		p.unnamed--
	}
}

// unnamedEntry stands for all keys that are only counted; without any, it is an empty
// entry. It has no number, which would change with every key. Its name lacks the slash
// of the prefix, so that no key has it.
func (p *peers) unnamedEntry() peerset.Change {
	c := peerset.Change{Name: strings.TrimSuffix(p.prefix, "/") + "*"}
	if p.unnamed > 0 {
		c.Reject = "more invalid keys, which are not listed by name"
	}
	return c
}

// windowsMAC matches a VTEP MAC address with the OUI of virtual adapters of
// Windows. etcd does not say which nodes run Windows; but MAC addresses that
// HNS assigns begin with this OUI, and those that Linux chooses never do.
var windowsMAC = regexp.MustCompile(`(?i)"VtepMAC":\s*"00[:-]15[:-]5d[:-]`)
