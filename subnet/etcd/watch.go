package etcd

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"flannel/subnet"
	"flannel/subnet/peerset"
)

// seedLife is how old the list that Acquire made may be to serve as the first set of Watch.
const seedLife = 5 * time.Second

// Watch hands over the others' leases; see subnet.Manager. It waits for Acquire, which says which lease is ours, and
// returns nil when ctx ends. changed owns the Set's slices for reading only.
func (m *Manager) Watch(ctx context.Context, changed func(subnet.Set)) error {
	select {
	case <-m.acquired:
	case <-ctx.Done():
		return nil
	}
	p := &peers{log: m.log, prefix: m.subnets, own: m.ownKey, set: peerset.NewKeeper(m.ownKey(), m.retain, m.log, changed)}
	defer p.set.Close()
	m.watched.Store(p.set)
	m.mu.Lock()
	start := m.seed
	m.seed = nil
	m.mu.Unlock()
	switch {
	// An old list would show peers that are gone by now, if only for the moment until the watch catches up.
	case start == nil:
	case time.Since(start.read) > seedLife:
		start = nil
	case start.kvs == nil:
		start.kvs = []*mvccpb.KeyValue{} // an empty list is one, too
	}
	f := m.leases("watch leases")
	f.notified, f.consumer = m.ownChanged, p
	return m.follow(ctx, f, start)
}

// leases is everything below <prefix>/subnets/.
func (m *Manager) leases(name string) feed {
	return feed{name: name, key: m.subnets, end: clientv3.GetPrefixRangeEnd(m.subnets), leases: true}
}

func (m *Manager) ownKey() string {
	if key := m.ownName.Load(); key != nil {
		return *key
	}
	return ""
}

// WatchConfig hands over the network configuration; see subnet.Manager. It returns nil when ctx ends.
func (m *Manager) WatchConfig(ctx context.Context, changed func(raw []byte)) error {
	key := m.prefix + "/config"
	return m.follow(ctx, feed{name: "watch the network configuration", key: key,
		consumer: &config{log: m.log.With("key", key), changed: changed, mistaken: m.mistakenPrefix}}, nil)
}

// mistakenPrefix looks for a network configuration below the same prefix with a leading slash, or without it.
func (m *Manager) mistakenPrefix(ctx context.Context) (prefix string, found bool) {
	prefix, had := strings.CutPrefix(m.prefix, "/")
	if !had {
		prefix = "/" + m.prefix
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	resp, err := m.client.Get(ctx, prefix+"/config", clientv3.WithCountOnly())
	return prefix, err == nil && resp.Count > 0 // else nobody may know, but it does not matter
}

// config passes the network configuration on when it differs from what was passed on last.
type config struct {
	log     *slog.Logger
	changed func([]byte)
	last    []byte // nil before the first
	missing bool   // and it was said
	// mistaken returns another prefix under which there is a configuration; it is asked when there is none under ours.
	mistaken func(context.Context) (prefix string, found bool)
}

func (c *config) handleList(ctx context.Context, all *snapshot, _ bool) error {
	if len(all.kvs) == 0 {
		c.setMissing(ctx)
		return nil
	}
	c.set(all.kvs[0].Value)
	return nil
}

func (c *config) handle(ctx context.Context, events []*mvccpb.Event) error {
	if e := events[len(events)-1]; e.Type == mvccpb.DELETE {
		c.setMissing(ctx)
	} else {
		c.set(e.Kv.Value)
	}
	return nil
}

func (c *config) handleNotify(context.Context) error { return nil }

func (c *config) set(raw []byte) {
	c.missing = false
	// Another list, after an outage, is no change.
	if c.last != nil && bytes.Equal(raw, c.last) {
		return
	}
	c.last = append([]byte{}, raw...)
	c.changed(raw)
}

func (c *config) setMissing(ctx context.Context) {
	if c.missing {
		return
	}
	c.missing = true
	prefix, found := c.mistaken(ctx)
	switch {
	case c.last == nil && found:
		c.log.Warn("waiting for the network configuration: etcd has none here, but one below another prefix; is --etcd-prefix right?", "cause", causeNoConfig, "other", prefix)
	case c.last == nil:
		c.log.Info("waiting for the network configuration: etcd has none yet", "cause", causeNoConfig)
	default:
		c.log.Warn("the network configuration was deleted from etcd: the last one stands", "cause", causeConfigGone)
	}
}
