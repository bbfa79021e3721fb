package etcd

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"flannel/pkg/reconcile"
	"flannel/subnet"
)

// Acquire implements subnet.Manager. It uses an existing key of this node (see
// claims), or creates one for the subnet that the subnet file remembers, or for
// a random free one. It waits for etcd, and returns other errors at once, such
// as a full network. The daemon calls it while it joins, when neither Watch nor
// Hold runs, and may call it again, also after it has succeeded.
func (m *Manager) Acquire(ctx context.Context, cfg subnet.Config, want subnet.Lease) (subnet.Lease, error) {
	// Each round lists the keys, and then uses one of them, or creates one under the
	// condition that nobody was faster. A lost race means another round with a new list.
	//
	// All rounds use one etcd lease, so that none is left over after a lost race.
	id := newLeaseID()
	granted, won := false, false
	defer func() {
		if granted && !won {
			m.revokeUnused(ctx, id) // unless a key is on it: that of a write whose answer was lost
		}
	}()
	for {
		var snap *snapshot
		err := m.retry(ctx, "list the leases", func(attempt context.Context) (err error) {
			// A page gets the time of the attempt, and the list as long as it takes.
			snap, err = m.list(ctx, m.leases(""), timeLeft(attempt))
			return err
		})
		if err != nil {
			return subnet.Lease{}, err
		}
		records := m.records(snap.kvs) // the keys of leases, also those of other nodes
		// In each round, because a write may have succeeded although its answer was lost, so
		// that our key is in this list. Other nodes may have taken the subnet chosen before.
		h, err := m.chooseHome(ctx, cfg, want, records)
		if err != nil {
			return subnet.Lease{}, err
		}
		if h.existing != nil { // it stays as it is until Publish
			m.warnOthers(h.existing.key, h.claims, nil) // nil: no key was deleted
			return addPublicIPv6(m.setHeld(snap, heldKeyOf(h.existing, snap.at), h.how), want), nil
		}
		if !granted {
			err := m.retry(ctx, "grant a lease", func(ctx context.Context) error { return m.grant(ctx, id) })
			if err != nil {
				return subnet.Lease{}, err
			}
			granted = true
		}
		held := m.newHeldKey(h.pick, want, id) // nothing is written yet
		if won, err = m.createKey(ctx, held, snap.at.rev, h.former); err != nil {
			return subnet.Lease{}, m.explainDenied(err, h.claims)
		}
		if won {
			m.warnOthers(held.key, h.claims, h.former)
			// Watch begins with this list, from which the deleted former keys are removed.
			snap.kvs = slices.DeleteFunc(snap.kvs, func(kv *mvccpb.KeyValue) bool {
				return slices.ContainsFunc(h.former, func(r record) bool { return r.kv == kv })
			})
			return m.setHeld(snap, held, h.how), nil
		}
	}
}

// record is a lease's key in the store, as Acquire sees it in a list. Its subnets are
// taken even if its value cannot be decoded.
type record struct {
	key   string           // whole, with the prefix
	name  string           // the last part of key, with the subnets; see parseKey
	kv    *mvccpb.KeyValue // as listed; kv.Lease is its etcd lease, 0 for a reservation
	lease *subnet.Lease    // only its subnets
	value *leaseValue      // decoded by findClaims only; else nil
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
		r.lease.V4.Subnet, r.lease.V6.Subnet, err = parseKey(r.name)
		if err != nil || !below {
			continue
		}
		records = append(records, r)
	}
	return records
}

// candidate chooses the subnets of a new lease: those of the subnet file (in want) that
// are free, and random ones for the other families. former are those records that
// createKey deletes. how is for the log. The error says which network is full.
func (m *Manager) candidate(cfg subnet.Config, want subnet.Lease, records, former []record) (pick subnet.Lease, how string, err error) {
	t := newTaken(cfg, records, former)
	// This node's address is inside the pod network, so those of other nodes may be, too.
	// keepSubnets and chooseFree reject a subnet that contains one of Underlay. cfg is a copy.
	if cfg.InsideNetwork() != nil {
		cfg.Underlay = append(slices.Clone(cfg.Underlay), addresses(records)...)
	}
	// A lease does not fit when IPv6 was enabled or disabled, also by a change to a
	// backend that has only IPv4. The pods keep their addresses of the other family.
	kept4, kept6 := keepSubnets(cfg, &want, t.rivals) // zero: the family needs another subnet, or is off
	missing := cfg                                    // the families that need another subnet than that of the file
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
	free4, free6, err := m.choose(missing, &t) // zero for families that are not missing
	pick.V4.Subnet, pick.V6.Subnet = cmp.Or(kept4, free4), cmp.Or(kept6, free6)
	return pick, how, err
}

// heldKeyOf returns the heldKey of an existing record, which stays as it is until
// Publish. at is the position of the list. r.value is set, since findClaims has decoded it.
func heldKeyOf(r *record, at position) *heldKey {
	at.witness, at.mod = r.key, r.kv.ModRevision // Hold follows this key only, so it must be the witness
	return &heldKey{key: r.key, v4: r.lease.V4.Subnet, v6: r.lease.V6.Subnet, id: clientv3.LeaseID(r.kv.Lease),
		want: *r.value, at: at, random: rand.N[time.Duration],
		seen: seen{value: r.value, mod: r.kv.ModRevision, created: r.kv.CreateRevision, id: clientv3.LeaseID(r.kv.Lease)}}
}

// addPublicIPv6 adds the IPv6 public address, which a reservation may lack.
func addPublicIPv6(l, want subnet.Lease) subnet.Lease {
	if l.V6.On() && !l.V6.PublicIP.IsValid() {
		l.V6.PublicIP = want.V6.PublicIP
	}
	return l
}

// newHeldKey returns the heldKey of a new lease, before createKey has created the key, on
// the etcd lease id. Its value has our public addresses and no backend: flannel on other
// nodes ignores such a lease, but reports an error for one with a backend and without data.
func (m *Manager) newHeldKey(pick, want subnet.Lease, id clientv3.LeaseID) *heldKey {
	held := &heldKey{key: m.keyOf(pick),
		v4: pick.V4.Subnet, v6: pick.V6.Subnet, id: id, random: rand.N[time.Duration]}
	if held.v4.IsValid() {
		held.want.PublicIP = want.V4.PublicIP
	}
	if held.v6.IsValid() {
		held.want.PublicIPv6 = want.V6.PublicIP
	}
	return held
}

// setHeld sets the key that the Manager holds, and returns its lease as stored. Watch
// starts with snap, the list from which held was chosen, and Hold at held.at.
func (m *Manager) setHeld(snap *snapshot, held *heldKey, how string) subnet.Lease {
	if held.at.rev == 0 { // a new key: follow it from its creation, at revision seen.mod
		held.at = position{cluster: snap.at.cluster, rev: held.seen.mod, witness: held.key, mod: held.seen.mod}
	}
	m.log.Info("subnet leased", "key", held.key, "because", how, "reservation", held.id == clientv3.NoLease)
	m.own.mu.Lock()
	if m.own.held == nil {
		close(m.own.acquired)
	}
	m.own.held, m.own.seed = held, snap
	m.own.mu.Unlock()
	reconcile.Notify(m.own.changed)       // Watch omits another key from now on
	reconcile.Notify(m.own.leaseChanged)  // renew may still sleep for the former one
	l := held.leaseWith(*held.seen.value) // not nil: createKey and heldKeyOf set it
	l.Since = held.seen.created
	return l
}
