package etcd

import (
	"bytes"
	"context"
	"log/slog"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"flannel/subnet"
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
	p := &peers{log: m.log, prefix: m.subnets, own: m.ownKey, changed: changed,
		again: func(after time.Duration) { time.AfterFunc(after, func() { token(m.ownChanged) }) }}
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
	f.wake, f.to = m.ownChanged, p
	return m.follow(ctx, f, start)
}

// leases is everything below <prefix>/subnets/.
func (m *Manager) leases(name string) feed {
	return feed{name: name, key: m.subnets, end: clientv3.GetPrefixRangeEnd(m.subnets), leases: true}
}

func (m *Manager) ownKey() string {
	if key := m.own.Load(); key != nil {
		return *key
	}
	return ""
}

// WatchConfig hands over the network configuration; see subnet.Manager. It returns nil when ctx ends.
func (m *Manager) WatchConfig(ctx context.Context, changed func(raw []byte)) error {
	key := m.prefix + "/config"
	return m.follow(ctx, feed{name: "watch the network configuration", key: key,
		to: &config{log: m.log.With("key", key), changed: changed}}, nil)
}

// config passes the network configuration on when it differs from what was passed on last.
type config struct {
	log     *slog.Logger
	changed func([]byte)
	last    []byte // nil before the first
	missing bool   // and it was said
}

func (c *config) listed(_ context.Context, all *snapshot, _ bool) error {
	if len(all.kvs) == 0 {
		c.absent()
		return nil
	}
	c.is(all.kvs[0].Value)
	return nil
}

func (c *config) happened(_ context.Context, events []*mvccpb.Event) error {
	if e := events[len(events)-1]; e.Type == mvccpb.DELETE {
		c.absent()
	} else {
		c.is(e.Kv.Value)
	}
	return nil
}

func (c *config) woken(context.Context) error { return nil }

func (c *config) is(raw []byte) {
	c.missing = false
	// Another list, after an outage, is no change.
	if c.last != nil && bytes.Equal(raw, c.last) {
		return
	}
	c.last = append([]byte{}, raw...)
	c.changed(raw)
}

func (c *config) absent() {
	if c.missing {
		return
	}
	c.missing = true
	if c.last == nil {
		c.log.Info("waiting for the network configuration: etcd has none yet")
	} else {
		c.log.Warn("the network configuration was deleted from etcd: the last one stands")
	}
}
