package etcd

import (
	"context"
	"log/slog"
	"regexp"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"flannel/subnet/etcd/format"
	"flannel/subnet/peerset"
)

// peers reads what is below <prefix>/subnets/ into a set of peers.
type peers struct {
	log    *slog.Logger
	prefix string
	own    func() string // our key, which is left out
	set    *peerset.Keeper

	// Keys that hold no lease. Anybody who may write makes as many as they like: the first maxRejects are in the set by
	// name, the others are only counted.
	named   map[string]bool
	unnamed int
}

func (p *peers) handleList(_ context.Context, snap *snapshot, replaced bool) error {
	p.named, p.unnamed = map[string]bool{}, snap.more
	all := make([]peerset.Change, 0, len(snap.kvs)+1)
	for _, kv := range snap.kvs {
		if c, counts := p.read(kv); counts {
			all = append(all, c)
		}
	}
	if replaced {
		p.log.Error("etcd holds another or an older store than before: peers that it lacks are retained", "cause", causeStoreChanged, "present", len(snap.kvs))
	}
	p.set.ApplyAll(append(all, p.others()), replaced)
	return nil
}

func (p *peers) handle(_ context.Context, events []*mvccpb.Event) error {
	changes := make([]peerset.Change, 0, len(events)+1)
	hadOthers := p.unnamed > 0
	for _, e := range events {
		if e.Type != mvccpb.DELETE {
			if e.Kv.CreateRevision != e.Kv.ModRevision {
				p.leave(string(e.Kv.Key))
			}
			if c, counts := p.read(e.Kv); counts {
				changes = append(changes, c)
			}
			continue
		}
		p.leave(string(e.Kv.Key))
		changes = append(changes, peerset.Change{Name: string(e.Kv.Key), Deleted: true})
	}
	if hasOthers := p.unnamed > 0; hasOthers != hadOthers {
		changes = append(changes, p.others())
	}
	p.set.Apply(changes, false)
	return nil
}

// woken is called when our own key is another.
func (p *peers) handleNotify(context.Context) error {
	p.set.SetOwn(p.own())
	return nil
}

// read returns what a key says now. It does not count if the key is not below the prefix, which nobody asked for.
func (p *peers) read(kv *mvccpb.KeyValue) (c peerset.Change, counts bool) {
	c.Name = string(kv.Key)
	name, below := strings.CutPrefix(c.Name, p.prefix)
	if !below {
		return c, false
	}
	l, err := format.ParseLease(name, kv.Value)
	switch {
	case err == nil:
		delete(p.named, c.Name)
		l.Name, l.Since = c.Name, kv.CreateRevision
		c.Lease, c.Windows = l, microsofts.Match(l.V4.Data)
	case len(c.Name) > maxKey || len(p.named) >= maxRejects && !p.named[c.Name]:
		p.unnamed++
	default:
		p.named[c.Name] = true
		c.Reject = err.Error()
	}
	return c, true
}

// leave takes a key that was there before out of those that hold no lease.
func (p *peers) leave(key string) {
	if p.named[key] {
		delete(p.named, key)
	} else if !p.set.Has(key) && p.unnamed > 0 {
		p.unnamed--
	}
}

// others stands for the keys that are not named. It does not say how many they are, which each event may change.
func (p *peers) others() peerset.Change {
	c := peerset.Change{Name: p.prefix + "*"}
	if p.unnamed > 0 {
		c.Reject = "more keys that hold no lease; they are not named"
	}
	return c
}

// microsofts is the OUI of virtual adapters that Windows makes, as flannel and we write it. That a node runs Windows is
// a guess, since nothing in etcd says it: MAC addresses that HNS gives begin so, and those that Linux chooses never do.
var microsofts = regexp.MustCompile(`(?i)"VtepMAC":\s*"00[:-]15[:-]5d[:-]`)
