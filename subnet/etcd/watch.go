// This file has the watches that subnet.Manager asks for: of the peers, and of the
// configuration. Each runs follow (follow.go) with a consumer.

package etcd

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"flannel/subnet"
	"flannel/subnet/peerset"
)

// seedLife is how old the list of Acquire may be when Watch uses it as its
// first set. Usually Watch begins at once after Acquire.
const seedLife = 5 * time.Second

// Watch implements subnet.Manager. It waits for Acquire, which finds out which
// lease is our own. changed must not modify the slices of the Set, nor call methods of
// the Keeper.
func (m *Manager) Watch(ctx context.Context, changed func(subnet.Set)) error {
	select {
	case <-m.own.acquired:
	case <-ctx.Done():
		return nil
	}
	// The Keeper is the set of peers. It calls changed with each new set, on the goroutine that has changed it. false: the
	// nodes choose their subnets.
	p := &peers{log: m.log, prefix: m.subnets, own: m.own.key, set: peerset.NewKeeper(m.own.key(), m.retain, false, m.log, changed)}
	defer p.set.Close()
	m.watched.Follow(p.set)
	m.own.mu.Lock()
	start := m.own.seed // nil if a Watch before has used it: follow lists
	m.own.seed = nil    // thousands of keys
	m.own.mu.Unlock()
	// An older list may have peers that are gone by now, which would be in the set
	// until the watch has caught up.
	if start != nil && time.Since(start.read) > seedLife {
		start = nil
	}
	f := m.leases("watch leases")
	f.notified, f.onNotify, f.consumer = m.own.changed, p.changeOwn, p
	m.follow(ctx, f, start)
	return nil // ctx has ended
}

// SetJudge implements subnet.Manager.
func (m *Manager) SetJudge(j subnet.Judge) { m.watched.SetJudge(j) }

// leases is the feed of all keys below <prefix>/subnets/, without a consumer. name is for
// messages; "" if it is only listed.
func (m *Manager) leases(name string) feed {
	return feed{name: name, key: m.subnets, end: clientv3.GetPrefixRangeEnd(m.subnets), leases: true}
}

// WatchConfig implements subnet.Manager. It begins with a list (start is nil).
func (m *Manager) WatchConfig(ctx context.Context, changed func(raw []byte)) error {
	key := m.prefix + "/config"
	m.follow(ctx, feed{name: "watch the network configuration", key: key,
		consumer: &config{log: m.log.With("key", key), key: key, changed: changed, mistaken: m.mistakenPrefix, report: m.reportConfig}}, nil)
	return nil
}

// exampleConfig is in the message about a missing configuration.
const exampleConfig = `{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}}`

// reportConfig sets what ConfigMissing returns.
func (m *Manager) reportConfig(missing error) { m.configMissing.Store(&missing) }

// ConfigMissing implements subnet.Manager.
func (m *Manager) ConfigMissing() error {
	if missing := m.configMissing.Load(); missing != nil {
		return *missing
	}
	return nil
}

// mistakenPrefix looks for a network configuration below the prefix with its
// leading slash removed, or with one added: that of a mistaken --etcd-prefix.
func (m *Manager) mistakenPrefix(ctx context.Context) (prefix string, found bool) {
	prefix, had := strings.CutPrefix(m.prefix, "/")
	if !had {
		prefix = "/" + m.prefix
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	resp, err := m.client.Get(ctx, prefix+"/config", clientv3.WithCountOnly())
	return prefix, err == nil && resp.Count > 0 // an error does not matter: this is only a hint
}

// config is the consumer of the network configuration, on the goroutine of
// WatchConfig.
type config struct {
	log     *slog.Logger
	key     string
	changed func([]byte)        // hands the configuration over
	report  func(missing error) // sets what ConfigMissing returns; a nil error: there is a configuration
	last    []byte              // the configuration handed over last; nil: none yet
	missing bool                // it is missing, which was logged
	// mistaken returns another prefix that has a configuration. It is called when
	// ours has none.
	mistaken func(context.Context) (prefix string, found bool)
}

// handleList implements consumer. The configuration is one key, so the list has
// one or none.
func (c *config) handleList(ctx context.Context, all *snapshot, _ bool) {
	if len(all.kvs) == 0 {
		c.setMissing(ctx)
	} else {
		c.set(all.kvs[0].Value)
	}
}

// handle implements consumer. Of several events, the last one counts.
func (c *config) handle(ctx context.Context, events []*mvccpb.Event) {
	if e := events[len(events)-1]; e.Type == mvccpb.DELETE {
		c.setMissing(ctx)
	} else {
		c.set(e.Kv.Value)
	}
}

// set hands the configuration over if it differs from the last one.
func (c *config) set(raw []byte) {
	c.missing = false
	c.report(nil)
	// The list after an outage may have the same value.
	if c.last != nil && bytes.Equal(raw, c.last) {
		return
	}
	c.last = append([]byte{}, raw...)
	c.changed(raw)
}

// setMissing logs once that there is no configuration. Before the first one it also
// reports why (ConfigMissing); a configuration that was handed over stays in force.
func (c *config) setMissing(ctx context.Context) {
	if c.missing {
		return
	}
	c.missing = true
	prefix, found := c.mistaken(ctx)
	switch {
	case c.last == nil && found:
		c.report(fmt.Errorf("etcd has no key %s, but one below %q; check --etcd-prefix", c.key, prefix))
		c.log.Warn("waiting for the network configuration, which exists under another prefix; check --etcd-prefix",
			"cause", causeNoConfig, "other", prefix)
	case c.last == nil:
		c.report(fmt.Errorf("etcd has no key %s; write it: etcdctl put %s '%s'", c.key, c.key, exampleConfig))
		c.log.Info("waiting for the network configuration", "cause", causeNoConfig)
	default:
		c.log.Warn("network configuration was deleted from etcd, keeping the last one", "cause", causeConfigGone)
	}
}
