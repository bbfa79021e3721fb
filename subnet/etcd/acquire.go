package etcd

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"flannel/subnet"
	"flannel/subnet/etcd/format"
	"flannel/subnet/patience"
)

// Acquire implements subnet.Manager. It uses the existing lease with our public
// address, if there is one; else it creates a key for the subnet that the
// subnet file remembers, or for a random free one. It waits for etcd, and
// returns other errors at once, such as a full network.
func (m *Manager) Acquire(ctx context.Context, cfg subnet.Config, want subnet.Lease) (subnet.Lease, error) {
	// Each round lists the keys, and then uses one of them, or creates one under the
	// condition that nobody was faster. A lost race means another round with a new list.
	//
	// All attempts use one etcd lease, so that none is left over after a lost race.
	id := newLeaseID()
	granted, won := false, false
	defer func() {
		if granted && !won {
			m.revokeUnused(ctx, id)
		}
	}()
	for {
		var snap *snapshot
		err := m.retry(ctx, "list the leases", func(attempt context.Context) (err error) {
			snap, err = m.list(ctx, m.leases(""), timeLeft(attempt))
			return err
		})
		if err != nil {
			return subnet.Lease{}, err
		}
		records := m.records(snap.kvs)
		// In each round, because a write may have succeeded although its answer was lost.
		fit, misfits := ours(cfg, want, records)
		if fit != nil {
			m.warnOthers(fit.key, misfits)
			return addPublicIPv6(m.setHeld(snap, heldKeyOf(fit, snap.at), "it has our public address"), want), nil
		}
		former := m.replaceable(misfits)
		pick, how, err := m.candidate(cfg, want, records, former)
		if err != nil {
			return subnet.Lease{}, err
		}
		if !granted {
			err := m.retry(ctx, "grant a lease", func(ctx context.Context) error { return m.grant(ctx, id) })
			if err != nil {
				return subnet.Lease{}, err
			}
			granted = true
		}
		held := m.newHeldKey(pick, want, id)
		if won, err = m.createKey(ctx, held, snap.at.rev, former); err != nil {
			return subnet.Lease{}, err
		}
		if won {
			// Watch begins with this list.
			snap.kvs = slices.DeleteFunc(snap.kvs, func(kv *mvccpb.KeyValue) bool {
				return slices.ContainsFunc(former, func(r record) bool { return r.kv == kv })
			})
			return m.setHeld(snap, held, how), nil
		}
	}
}

// record is a lease's key in the store. Its subnets are taken even if its value
// cannot be decoded.
type record struct {
	key   string
	name  string // the last part of key
	kv    *mvccpb.KeyValue
	lease *subnet.Lease // only its subnets
	value format.Value  // decoded by ours only
}

// records returns the keys below the prefix that are those of leases.
// Others are ignored here; Watch reports them.
func (m *Manager) records(kvs []*mvccpb.KeyValue) []record {
	records := make([]record, 0, len(kvs))
	for _, kv := range kvs {
		r := record{key: string(kv.Key), kv: kv, lease: &subnet.Lease{}}
		var err error
		var below bool
		r.name, below = strings.CutPrefix(r.key, m.subnets)
		r.lease.V4.Subnet, r.lease.V6.Subnet, err = format.ParseKey(r.name)
		if err != nil || !below {
			continue
		}
		records = append(records, r)
	}
	return records
}

// ours returns the records with our public address: the first one that fits the
// configuration, and the others.
func ours(cfg subnet.Config, want subnet.Lease, records []record) (fit *record, others []record) {
	for _, r := range records {
		if !mayHaveOurAddress(cfg, want, r.kv.Value) {
			continue
		}
		var err error
		r.value, err = format.DecodeValue(r.kv.Value)
		switch {
		// An unreadable value may be another node's: it is neither used nor removed.
		case err != nil || !hasOurAddress(cfg, want, r.value):
		case fit == nil && subnet.Fits(cfg, r.lease) == nil:
			fit = &r
		default:
			others = append(others, r)
		}
	}
	return fit, others
}

// replaceable returns those records of misfits that our new key replaces: all but
// reservations, whose operator may be about to change the configuration.
func (m *Manager) replaceable(misfits []record) (former []record) {
	for _, r := range misfits {
		if r.kv.Lease == 0 {
			m.log.Warn("ignoring a reservation with our public address that does not fit the network configuration", "key", r.key)
			continue
		}
		former = append(former, r)
	}
	return former[:min(len(former), 50)] // createKey deletes them in one transaction, which has a limit of 128 steps
}

// mayHaveOurAddress reports whether a value may contain our public address. It
// spares decoding ten thousand values at the start. An IPv4 address is written
// in one form only, unless JSON escapes it.
func mayHaveOurAddress(cfg subnet.Config, want subnet.Lease, raw []byte) bool {
	return !cfg.V4.On() || bytes.Contains(raw, []byte(want.V4.PublicIP.String())) || bytes.IndexByte(raw, '\\') >= 0
}

// hasOurAddress reports whether v has our public address: the IPv4 one, or the
// IPv6 one in a network without IPv4.
func hasOurAddress(cfg subnet.Config, want subnet.Lease, v format.Value) bool {
	if cfg.V4.On() {
		return v.PublicIP.IsValid() && v.PublicIP == want.V4.PublicIP
	}
	return v.PublicIPv6.IsValid() && v.PublicIPv6 == want.V6.PublicIP
}

// candidate chooses the subnets of a new lease: those of the subnet file that
// are free, and random ones for the other families. former are those records that
// createKey deletes.
func (m *Manager) candidate(cfg subnet.Config, want subnet.Lease, records, former []record) (pick subnet.Lease, how string, err error) {
	t := newTaken(cfg, records, former)
	// cfg is a copy: Keep and Choose reject a subnet that contains one of Underlay.
	if cfg.InsideNetwork() != nil {
		cfg.Underlay = append(slices.Clone(cfg.Underlay), addresses(records)...)
	}
	// A lease does not fit when IPv6 was enabled or disabled, also by a change to a
	// backend that has only IPv4. The pods keep their addresses of the other family.
	kept4, kept6 := subnet.Keep(cfg, &want, t.rivals)
	missing := cfg
	if kept4.IsValid() {
		missing.V4 = subnet.Network{}
	}
	if kept6.IsValid() {
		missing.V6 = subnet.Network{}
	}
	switch {
	case !missing.V4.On() && !missing.V6.On():
		how = "it is in the subnet file"
	case kept4.IsValid() || kept6.IsValid():
		how = "one family is in the subnet file, and the other was free"
	default:
		how = "it was free"
	}
	free4, free6, err := m.choose(missing, &t)
	pick.V4.Subnet, pick.V6.Subnet = cmp.Or(kept4, free4), cmp.Or(kept6, free6)
	return pick, how, err
}

// heldKeyOf returns the heldKey of an existing record, which stays as it is
// until Publish.
func heldKeyOf(r *record, at position) *heldKey {
	at.witness, at.mod = r.key, r.kv.ModRevision
	return &heldKey{key: r.key, v4: r.lease.V4.Subnet, v6: r.lease.V6.Subnet, id: clientv3.LeaseID(r.kv.Lease),
		want: r.value, stored: &r.value, mod: r.kv.ModRevision, created: r.kv.CreateRevision, at: at}
}

// addPublicIPv6 adds the IPv6 public address, which a reservation may lack.
func addPublicIPv6(l, want subnet.Lease) subnet.Lease {
	if l.V6.On() && !l.V6.PublicIP.IsValid() {
		l.V6.PublicIP = want.V6.PublicIP
	}
	return l
}

// newHeldKey returns the heldKey of a new lease. Its value has our public
// addresses and no backend: flannel on other nodes ignores such a lease, but
// reports an error for one with a backend and without data.
func (m *Manager) newHeldKey(pick, want subnet.Lease, id clientv3.LeaseID) *heldKey {
	held := &heldKey{key: m.subnets + format.FormatKey(pick.V4.Subnet, pick.V6.Subnet),
		v4: pick.V4.Subnet, v6: pick.V6.Subnet, id: id}
	if held.v4.IsValid() {
		held.want.PublicIP = want.V4.PublicIP
	}
	if held.v6.IsValid() {
		held.want.PublicIPv6 = want.V6.PublicIP
	}
	return held
}

// setHeld sets the key that the Manager holds, and returns its lease as stored.
// Hold and Watch continue from snap.
func (m *Manager) setHeld(snap *snapshot, held *heldKey, how string) subnet.Lease {
	if held.at.rev == 0 { // a new key: follow it from its creation
		held.at = position{cluster: snap.at.cluster, rev: held.mod, witness: held.key, mod: held.mod}
	}
	m.log.Info("subnet leased", "key", held.key, "because", how, "reservation", held.id == clientv3.NoLease)
	m.mu.Lock()
	m.held, m.seed = held, snap
	m.mu.Unlock()
	m.ownName.Store(&held.key)
	patience.Notify(m.ownChanged)   // Watch omits another key from now on
	patience.Notify(m.leaseChanged) // renew sleeps for the former one
	m.acquireOnce.Do(func() { close(m.acquired) })
	l := subnet.Lease{Name: held.key, Since: held.created, Backend: held.stored.BackendType}
	if held.v4.IsValid() {
		l.V4 = subnet.Endpoint{Subnet: held.v4, PublicIP: held.stored.PublicIP, Data: held.stored.Data}
	}
	if held.v6.IsValid() {
		l.V6 = subnet.Endpoint{Subnet: held.v6, PublicIP: held.stored.PublicIPv6, Data: held.stored.V6Data}
	}
	return l
}

// warnOthers logs further keys with our public address. They are former leases
// of this node, or another node has the address.
func (m *Manager) warnOthers(key string, others []record) {
	if len(others) == 0 {
		return
	}
	var keys []string
	for _, r := range others {
		keys = append(keys, r.key)
	}
	m.log.Warn("several leases have our public address, using the first one that fits",
		"cause", causeSeveralLeases, "key", key, "others", format.Clip(strings.Join(keys, " ")))
}
