package etcd

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"flannel/subnet"
)

// ghostLife is how long a peer stays that a replaced store does not know: as long as its lease could have lasted.
const ghostLife = 24 * time.Hour

// peers turns what is below <prefix>/subnets/ into Sets. Slices that were handed out are never written to again.
type peers struct {
	log     *slog.Logger
	prefix  string
	own     func() string // our key, which is left out
	again   func(after time.Duration)
	changed func(subnet.Set)

	known   map[string]entry // by key
	ghosts  map[string]time.Time
	leases  []*subnet.Lease // as handed out last
	rejects []subnet.Rejected
	junk    int    // entries of known that hold no lease; maxRejects at most
	more    int    // keys that hold no lease and are not in known
	windows string // likewise
	left    string // the key that was left out of leases
	systems bool   // windows may be another
}

// entry is what one key holds: a lease, or why not.
type entry struct {
	mod    int64
	lease  *subnet.Lease
	reject string
	// windows is a guess, since nothing in etcd says it: MAC addresses that HNS gives begin as Microsoft's do, and those
	// that Linux chooses are never of that kind.
	windows bool
}

// order is that of subnet.Compare; two keys can spell the same subnets, and every node must order these, too.
func order(a, b *subnet.Lease) int { return cmp.Or(subnet.Compare(a, b), cmp.Compare(a.Name, b.Name)) }

func (p *peers) listed(_ context.Context, snap *snapshot, replaced bool) error {
	kvs, first := snap.kvs, p.known == nil
	p.more = snap.more
	if first {
		p.known, p.ghosts = make(map[string]entry, len(kvs)), map[string]time.Time{}
	}
	// A list is a set of changes like any other: what is in it, and what no longer is.
	before := maps.Clone(p.known)
	for _, kv := range kvs {
		delete(before, string(kv.Key))
		delete(p.ghosts, string(kv.Key))
		p.read(kv, replaced)
	}
	for key, e := range before { // what the list no longer has
		if _, ghost := p.ghosts[key]; ghost {
			continue
		}
		if replaced && e.lease != nil && key != p.own() {
			p.ghosts[key] = time.Now().Add(ghostLife)
			continue
		}
		p.forget(key)
	}
	p.exorcise(kvs)
	if replaced {
		p.log.Error("etcd holds another or an older store than before: peers that it lacks stay until they are back, a day at most",
			"missing", len(p.ghosts), "present", len(kvs))
		p.again(ghostLife)
	}
	p.deliver(p.all(), p.unreadable(), first)
	return nil
}

func (p *peers) happened(_ context.Context, events []*mvccpb.Event) error {
	// One copy for the whole batch; then each event costs a binary search, and nothing is parsed but what changed.
	leases := append(make([]*subnet.Lease, 0, len(p.leases)+len(events)), p.leases...) // with room for what is new
	rejects, more := false, p.more
	for _, e := range events {
		key := string(e.Kv.Key)
		delete(p.ghosts, key)
		old, known := p.known[key]
		if !known && (e.Type == mvccpb.DELETE || e.Kv.CreateRevision != e.Kv.ModRevision) { // it was there, hence among those that are only counted
			p.more = max(0, p.more-1)
		}
		if e.Type == mvccpb.DELETE {
			p.forget(key)
		} else {
			p.read(e.Kv, false)
		}
		now := p.known[key]
		rejects = rejects || old.reject != now.reject
		if key != p.left {
			leases = replace(leases, old.lease, now.lease)
		}
	}
	if len(p.ghosts) > 0 { // a day in a cluster's life: here, simple counts for more than fast
		for _, e := range events {
			p.exorcise([]*mvccpb.KeyValue{e.Kv})
		}
		leases = p.all()
	}
	unreadable := p.rejects
	if rejects || (p.more == 0) != (more == 0) {
		unreadable = p.unreadable()
	}
	p.deliver(leases, unreadable, false)
	return nil
}

// woken is called when our own key is another or a ghost's time may be over.
func (p *peers) woken(context.Context) error {
	for key, end := range p.ghosts {
		if !time.Now().Before(end) {
			delete(p.ghosts, key)
			p.forget(key)
		}
	}
	p.deliver(p.all(), p.unreadable(), false)
	return nil
}

// read takes an entry in. A lease that says what it said before keeps its pointer.
func (p *peers) read(kv *mvccpb.KeyValue, replaced bool) {
	key := string(kv.Key)
	old, have := p.known[key]
	if have && old.mod == kv.ModRevision && !replaced {
		return
	}
	e := entry{mod: kv.ModRevision}
	name, below := strings.CutPrefix(key, p.prefix)
	if !below {
		return // nobody asked for it
	}
	l, err := parseLease(name, kv.Value)
	switch {
	case err != nil && (len(key) > maxKey || p.junk >= maxRejects && old.reject == ""):
		p.forget(key)
		p.more++
		return
	case err != nil:
		e.reject = err.Error()
	case old.lease != nil && old.lease.Equal(l) && old.lease.Since == kv.CreateRevision:
		e.lease = old.lease
	default:
		l.Name, l.Since = key, kv.CreateRevision
		e.lease = l
	}
	e.windows = e.lease != nil && microsofts.Match(e.lease.V4.Data)
	p.forget(key)
	p.known[key] = e
	if e.reject != "" {
		p.junk++
	}
	if old.windows != e.windows {
		p.systems = true
	}
}

func (p *peers) forget(key string) {
	if p.known[key].reject != "" {
		p.junk--
	}
	delete(p.known, key)
}

// microsofts is the OUI of virtual adapters that Windows makes, as flannel and we write it.
var microsofts = regexp.MustCompile(`(?i)"VtepMAC":\s*"00[:-]15[:-]5d[:-]`)

// firstWindows looks at all peers, which is only for when one comes that may run Windows, or one goes.
func (p *peers) firstWindows() (first string) {
	for key, e := range p.known {
		if e.windows && key != p.left && (first == "" || key < first) {
			first = key
		}
	}
	return first
}

// exorcise drops the ghosts whose subnet or node turns up under another key: what the store says now counts for more.
func (p *peers) exorcise(kvs []*mvccpb.KeyValue) {
	for _, kv := range kvs {
		if len(p.ghosts) == 0 {
			return
		}
		l := p.known[string(kv.Key)].lease
		if _, ghost := p.ghosts[string(kv.Key)]; l == nil || ghost {
			continue
		}
		for key := range p.ghosts {
			if l.Displaces(p.known[key].lease) {
				delete(p.ghosts, key)
				p.forget(key)
			}
		}
	}
}

// replace puts now in the place of old, both of the same key, into an ordered slice that is ours alone.
func replace(leases []*subnet.Lease, old, now *subnet.Lease) []*subnet.Lease {
	if old == now {
		return leases
	}
	at := cmp.Or(old, now) // of the same key, hence with the same subnets: one place serves both
	i, found := slices.BinarySearchFunc(leases, at, order)
	switch {
	case found && now != nil:
		leases[i] = now
	case found:
		leases = slices.Delete(leases, i, i+1)
	case now != nil:
		leases = slices.Insert(leases, i, now)
	}
	return leases
}

// all orders everything that is known, without our own.
func (p *peers) all() []*subnet.Lease {
	p.left = p.own()
	leases := make([]*subnet.Lease, 0, len(p.known))
	for key, e := range p.known {
		if e.lease != nil && key != p.left {
			leases = append(leases, e.lease)
		}
	}
	slices.SortFunc(leases, order)
	return leases
}

// unreadable are the keys that hold no lease, in order, as many as are named. Our own is not reported: it is put back.
func (p *peers) unreadable() []subnet.Rejected {
	var rejects []subnet.Rejected
	for key, e := range p.known {
		if e.reject != "" && key != p.left {
			rejects = append(rejects, subnet.Rejected{Name: key, Reason: e.reject})
		}
	}
	slices.SortFunc(rejects, func(a, b subnet.Rejected) int { return cmp.Compare(a.Name, b.Name) })
	if p.more > 0 { // without the number, which may be another with each event
		rejects = append(rejects, subnet.Rejected{Name: p.prefix + "*", Reason: "more keys that hold no lease; they are not named"})
	}
	return rejects
}

// deliver hands the set over if it differs from the last one, or always.
func (p *peers) deliver(leases []*subnet.Lease, rejects []subnet.Rejected, always bool) {
	windows := p.windows
	if p.systems || p.known[windows].windows != (windows != "") || windows != "" && windows == p.left {
		windows, p.systems = p.firstWindows(), false
	}
	if !always && slices.Equal(leases, p.leases) && slices.Equal(rejects, p.rejects) && windows == p.windows {
		return
	}
	p.leases, p.rejects, p.windows = leases, rejects, windows
	p.changed(subnet.Set{Leases: leases, Rejects: rejects, Windows: windows})
}
