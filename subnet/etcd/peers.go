package etcd

import (
	"context"
	"log/slog"
	"regexp"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"flannel/subnet/peerset"
)

// peers reads what is below <prefix>/subnets/ into a set of peers.
type peers struct {
	log    *slog.Logger
	prefix string
	own    func() string // our key, which is left out
	set    *peerset.Keeper
}

func (p *peers) listed(_ context.Context, kvs []*mvccpb.KeyValue, replaced bool) error {
	all := make([]peerset.Change, 0, len(kvs))
	for _, kv := range kvs {
		all = append(all, p.read(kv))
	}
	if replaced {
		p.log.Error("etcd holds another or an older store than before: peers that it lacks are retained", "present", len(kvs))
	}
	p.set.ApplyAll(all, replaced)
	return nil
}

func (p *peers) happened(_ context.Context, events []*mvccpb.Event) error {
	changes := make([]peerset.Change, 0, len(events))
	for _, e := range events {
		if e.Type == mvccpb.DELETE {
			changes = append(changes, peerset.Change{Name: string(e.Kv.Key), Deleted: true})
		} else {
			changes = append(changes, p.read(e.Kv))
		}
	}
	p.set.Apply(changes, false)
	return nil
}

// woken is called when our own key is another.
func (p *peers) woken(context.Context) error {
	p.set.SetOwn(p.own())
	return nil
}

func (p *peers) read(kv *mvccpb.KeyValue) peerset.Change {
	c := peerset.Change{Name: string(kv.Key)}
	l, err := parseLease(c.Name[len(p.prefix):], kv.Value)
	if err != nil {
		c.Reject = err.Error()
		return c
	}
	l.Name, l.Since = c.Name, kv.CreateRevision
	c.Lease, c.Windows = l, microsofts.Match(l.V4.Data)
	return c
}

// microsofts is the OUI of virtual adapters that Windows makes, as flannel and we write it. That a node runs Windows is
// a guess, since nothing in etcd says it: MAC addresses that HNS gives begin so, and those that Linux chooses never do.
var microsofts = regexp.MustCompile(`(?i)"VtepMAC":\s*"00[:-]15[:-]5d[:-]`)
