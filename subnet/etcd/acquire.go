package etcd

import (
	"bytes"
	"context"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"flannel/subnet"
	"flannel/subnet/etcd/format"
)

// Acquire claims a subnet; see subnet.Manager. It waits for etcd; the other errors, a full network above all, are
// returned at once.
func (m *Manager) Acquire(ctx context.Context, cfg subnet.Config, want subnet.Lease) (subnet.Lease, error) {
	// One etcd lease serves all attempts, so that a lost race leaves none behind.
	id := newLeaseID()
	granted := false
	for {
		var snap *snapshot
		err := m.retry(ctx, "list the leases", func(attempt context.Context) (err error) {
			snap, err = m.list(ctx, m.leases(""), left(attempt))
			return err
		})
		if err != nil {
			return subnet.Lease{}, err
		}
		all := m.records(snap.kvs)
		// Looked for each time: a claim of ours may have got through although we never heard of it.
		fit, misfits := ours(cfg, want, all)
		if fit != nil {
			if granted {
				m.revokeUnused(ctx, id)
			}
			m.warnOthers(fit.key, misfits)
			return complete(m.setHeld(snap, reuse(fit, snap.at), "our public address is in it"), want), nil
		}
		pick, how, err := candidate(cfg, want, all)
		if err != nil {
			if granted {
				m.revokeUnused(ctx, id)
			}
			return subnet.Lease{}, err
		}
		if !granted {
			err := m.retry(ctx, "grant a lease", func(ctx context.Context) error { return m.grant(ctx, id) })
			if err != nil {
				return subnet.Lease{}, err
			}
			granted = true
		}
		c := m.newClaim(pick, want, id)
		won, err := m.createKey(ctx, c, snap.at.rev, misfits)
		if err != nil {
			m.revokeUnused(ctx, id)
			return subnet.Lease{}, err
		}
		if won {
			return m.setHeld(snap, c, how), nil
		}
	}
}

// record is an entry of the store as far as it can be read: who holds what matters even where the rest is garbage.
type record struct {
	key   string
	kv    *mvccpb.KeyValue
	lease *subnet.Lease // subnets only
	value format.Value  // only of those that ours returns
}

func (m *Manager) records(kvs []*mvccpb.KeyValue) []record {
	all := make([]record, 0, len(kvs))
	for _, kv := range kvs {
		r := record{key: string(kv.Key), kv: kv, lease: &subnet.Lease{}}
		var err error
		name, below := strings.CutPrefix(r.key, m.subnets)
		r.lease.V4.Subnet, r.lease.V6.Subnet, err = format.ParseKey(name)
		if err != nil || !below {
			continue
		}
		all = append(all, r)
	}
	return all
}

// ours finds the entries that carry our public address: the first that fits the configuration, and the others.
func ours(cfg subnet.Config, want subnet.Lease, all []record) (fit *record, others []record) {
	for _, r := range all {
		if !mentions(cfg, want, r.kv.Value) {
			continue
		}
		var err error
		r.value, err = format.DecodeValue(r.kv.Value)
		switch {
		// What cannot be read is nobody's for certain, so not ours to take over or to remove.
		case err != nil || !carries(cfg, want, r.value):
		case fit == nil && subnet.Fits(cfg, r.lease) == nil:
			fit = &r
		default:
			others = append(others, r)
		}
	}
	return fit, others
}

// mentions tells whether a value can carry our public address. Of ten thousand values hardly one does, and reading them
// all takes time that a start does not have. An IPv4 address is spelt in one way only, unless JSON escapes it.
func mentions(cfg subnet.Config, want subnet.Lease, raw []byte) bool {
	return !cfg.V4.On() || bytes.Contains(raw, []byte(want.V4.PublicIP.String())) || bytes.IndexByte(raw, '\\') >= 0
}

// carries tells whether v is about this node. Without IPv4, PublicIP is 0.0.0.0 in every value and says nothing.
func carries(cfg subnet.Config, want subnet.Lease, v format.Value) bool {
	if cfg.V4.On() {
		return v.PublicIP.IsValid() && v.PublicIP == want.V4.PublicIP
	}
	return v.PublicIPv6.IsValid() && v.PublicIPv6 == want.V6.PublicIP
}

// candidate picks what to claim: what the subnet file remembers if it is free, else at random.
func candidate(cfg subnet.Config, want subnet.Lease, all []record) (pick subnet.Lease, how string, err error) {
	// Everything whose key can be read is taken, our own former subnets included: pods may still have their addresses.
	// But a key that claims the whole network or more is nobody's, and must not keep every new node from joining.
	taken := make([]*subnet.Lease, len(all))
	for i, r := range all {
		taken[i] = &subnet.Lease{}
		if cfg.V4.Holds(r.lease.V4.Subnet) {
			taken[i].V4 = r.lease.V4
		}
		if cfg.V6.Holds(r.lease.V6.Subnet) {
			taken[i].V6 = r.lease.V6
		}
	}
	if cfg.InsideNetwork() != nil {
		cfg.Underlay = append(slices.Clone(cfg.Underlay), addresses(all)...)
	}
	if subnet.Fits(cfg, &want) == nil && subnet.Free(&want, taken) {
		pick.V4.Subnet, pick.V6.Subnet = want.V4.Subnet, want.V6.Subnet
		return pick, "the subnet file remembers it", nil
	}
	pick.V4.Subnet, pick.V6.Subnet, err = subnet.Choose(cfg, taken, rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())))
	return pick, "it was free", err
}

// addresses are the nodes' own. To read all values takes time, so only who must avoid these addresses does.
func addresses(all []record) (nodes []netip.Prefix) {
	for _, r := range all {
		v, err := format.DecodeValue(r.kv.Value)
		if err != nil {
			continue
		}
		for _, a := range []netip.Addr{v.PublicIP, v.PublicIPv6} {
			if p, err := a.Prefix(a.BitLen()); err == nil {
				nodes = append(nodes, p)
			}
		}
	}
	return nodes
}

// reuse makes the claim on an entry that the store has already. It is left as it is until Publish.
func reuse(r *record, at position) *heldKey {
	at.witness, at.mod = r.key, r.kv.ModRevision
	return &heldKey{key: r.key, v4: r.lease.V4.Subnet, v6: r.lease.V6.Subnet, id: clientv3.LeaseID(r.kv.Lease),
		want: r.value, stored: &r.value, mod: r.kv.ModRevision, created: r.kv.CreateRevision, at: at}
}

// complete adds the public address that a reservation written by hand leaves out.
func complete(l, want subnet.Lease) subnet.Lease {
	if l.V6.On() && !l.V6.PublicIP.IsValid() {
		l.V6.PublicIP = want.V6.PublicIP
	}
	return l
}

// newClaim holds our addresses and no backend: a flannel on another node passes over such a lease, where it would
// stumble over one with a backend and no data.
func (m *Manager) newClaim(pick, want subnet.Lease, id clientv3.LeaseID) *heldKey {
	c := &heldKey{key: m.subnets + format.FormatKey(pick.V4.Subnet, pick.V6.Subnet), v4: pick.V4.Subnet, v6: pick.V6.Subnet, id: id}
	if c.v4.IsValid() {
		c.want.PublicIP = want.V4.PublicIP
	}
	if c.v6.IsValid() {
		c.want.PublicIPv6 = want.V6.PublicIP
	}
	return c
}

// hold makes c the claim, and returns it as the store has it.
func (m *Manager) setHeld(snap *snapshot, c *heldKey, how string) subnet.Lease {
	if c.at.rev == 0 {
		c.at = position{cluster: snap.at.cluster, rev: c.mod, witness: c.key, mod: c.mod}
	}
	m.log.Info("subnet leased", "key", c.key, "because", how, "reservation", c.id == clientv3.NoLease)
	m.mu.Lock()
	m.held, m.seed = c, snap
	m.mu.Unlock()
	m.ownName.Store(&c.key)
	notify(m.ownChanged)
	notify(m.leaseChanged)
	m.acquireOnce.Do(func() { close(m.acquired) })
	l := subnet.Lease{Name: c.key, Since: c.created, Backend: c.stored.BackendType}
	if c.v4.IsValid() {
		l.V4 = subnet.Endpoint{Subnet: c.v4, PublicIP: c.stored.PublicIP, Data: c.stored.Data}
	}
	if c.v6.IsValid() {
		l.V6 = subnet.Endpoint{Subnet: c.v6, PublicIP: c.stored.PublicIPv6, Data: c.stored.V6Data}
	}
	return l
}

// warnOthers warns of further keys with our address: left by an earlier life of this node, or another node has it.
func (m *Manager) warnOthers(key string, others []record) {
	if len(others) == 0 {
		return
	}
	var keys []string
	for _, r := range others {
		keys = append(keys, r.key)
	}
	m.log.Warn("several leases carry our public address: taking the first that fits", "cause", causeSeveralLeases, "key", key, "others", format.Clip(strings.Join(keys, " ")))
}
