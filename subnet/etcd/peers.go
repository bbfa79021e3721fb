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

// peers is the consumer of the keys below <prefix>/subnets/. It translates them into changes of a set of peers.
type peers struct {
	log    *slog.Logger
	prefix string
	own    func() string // returns our own key, which is no peer
	set    *peerset.Keeper

	// Keys that are not those of leases. Their number is not limited, so the first maxRejects are in the set by name, and
	// the others are only counted.
	named   map[string]bool
	unnamed int
}

func (p *peers) handleList(_ context.Context, snap *snapshot, replaced bool) error {
	p.named, p.unnamed = map[string]bool{}, snap.more
	entries := make([]peerset.Change, 0, len(snap.kvs)+1)
	for _, kv := range snap.kvs {
		if c, below := p.read(kv); below {
			entries = append(entries, c)
		}
	}
	if replaced {
		p.log.Error("etcd store was replaced, retaining missing peers", "cause", causeStoreChanged, "present", len(snap.kvs))
	}
	p.set.ApplyAll(append(entries, p.others()), replaced)
	return nil
}

func (p *peers) handle(_ context.Context, events []*mvccpb.Event) error {
	changes := make([]peerset.Change, 0, len(events)+1)
	hadOthers := p.unnamed > 0
	for _, e := range events {
		if e.Type != mvccpb.DELETE {
			if e.Kv.CreateRevision != e.Kv.ModRevision {
				p.removeReject(string(e.Kv.Key))
			}
			if c, below := p.read(e.Kv); below {
				changes = append(changes, c)
			}
			continue
		}
		p.removeReject(string(e.Kv.Key))
		changes = append(changes, peerset.Change{Name: string(e.Kv.Key), Deleted: true})
	}
	if hasOthers := p.unnamed > 0; hasOthers != hadOthers {
		changes = append(changes, p.others())
	}
	p.set.Apply(changes, false)
	return nil
}

// handleNotify is called when our own key changed.
func (p *peers) handleNotify(context.Context) error {
	p.set.SetOwn(p.own())
	return nil
}

// read translates a key. below is false if it is not below the prefix, and was not requested.
func (p *peers) read(kv *mvccpb.KeyValue) (c peerset.Change, below bool) {
	c.Name = string(kv.Key)
	var name string
	name, below = strings.CutPrefix(c.Name, p.prefix)
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

// removeReject removes a key that existed before from the invalid ones, if it was one.
func (p *peers) removeReject(key string) {
	if p.named[key] {
		delete(p.named, key)
	} else if !p.set.Has(key) && p.unnamed > 0 {
		p.unnamed--
	}
}

// others is an entry that stands for all keys that are only counted. It has no number, which would change with every key.
func (p *peers) others() peerset.Change {
	c := peerset.Change{Name: p.prefix + "*"}
	if p.unnamed > 0 {
		c.Reject = "more invalid keys, which are not listed by name"
	}
	return c
}

// microsofts matches a VTEP MAC address with the OUI of virtual adapters of Windows. etcd does not say which nodes run
// Windows; but MAC addresses that HNS assigns begin with this OUI, and those that Linux chooses never do.
var microsofts = regexp.MustCompile(`(?i)"VtepMAC":\s*"00[:-]15[:-]5d[:-]`)
