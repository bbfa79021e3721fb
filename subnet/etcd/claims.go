package etcd

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"flannel/subnet"
)

// claims are the keys whose value has this node's public address, for Acquire. The
// address does not prove that a key is this node's: each writer can put it into
// the key that it may write. Acquire uses the first key in this table that exists,
// or that is free, and that this node's etcd user may write:
//
//	key                                                       another node, whose user may write only its own key
//	with the subnets of the subnet file and our address       cannot create such a key
//	reservation with our address, the oldest first            can have such a key, which our user may not write
//	new key with the subnets of the subnet file, if free      cannot create such a key
//	other key with our address, the oldest first              can have such a key, which our user may not write
//	new key with a free subnet                                cannot create such a key
//
// A reservation with our address that has a subnet of the configuration, but lacks a family
// or has one too many, is an error (misfitError): instead of the third row and those below it,
// if the subnet file has that subnet, and otherwise instead of the last row.
//
// If the user may not write a single one of the existing keys, the key with the
// subnets of the subnet file is used, and Publish says which permission is
// missing.
//
// Write permission is the one evidence that nobody can copy: the backend data
// (MAC address, public key) of a lease is public, and after a boot this node has
// neither the device nor the subnet file. The oldest key comes first, because it
// stays the oldest, and because the other nodes prefer the older lease as well
// (plan.comparePrecedence). A reservation comes before the subnet file alone,
// because an operator has written it.
type claims struct {
	filed        []record // with a subnet of the subnet file
	reservations []record // without an etcd lease: an operator has written them
	leased       []record // on an etcd lease
	misfits      []record // do not fit the configuration: never used; some are deleted, see replaceable
}

// findClaims returns the records that have our public address (in want), and sets their
// value. A record with an unreadable value is none: it may be another node's, and is
// neither used nor removed.
func findClaims(cfg subnet.Config, want subnet.Lease, records []record) (c claims) {
	for _, r := range records {
		if !mayHaveOurAddress(cfg, want, r.kv.Value) {
			continue
		}
		value, err := decodeValue(r.kv.Value)
		r.value = &value
		switch {
		case err != nil || !hasOurAddress(cfg, want, value): // no claim
		case subnet.Fits(cfg, r.lease) != nil: // such as one of another network or length
			c.misfits = append(c.misfits, r)
		case isFiled(*r.lease, want):
			c.filed = append(c.filed, r)
		case r.kv.Lease == 0:
			c.reservations = append(c.reservations, r)
		default:
			c.leased = append(c.leased, r)
		}
	}
	for _, records := range [][]record{c.filed, c.reservations, c.leased} {
		slices.SortFunc(records, func(a, b record) int { return cmp.Compare(a.kv.CreateRevision, b.kv.CreateRevision) })
	}
	return c
}

// all returns all claims, first those that fit, in the order of the table above.
func (c claims) all() []record { return slices.Concat(c.filed, c.reservations, c.leased, c.misfits) }

// isFiled reports whether l has a subnet that the subnet file remembers, and that Acquire
// got in want.
func isFiled(l, want subnet.Lease) bool {
	return l.V4.On() && l.V4.Subnet == want.V4.Subnet || l.V6.On() && l.V6.Subnet == want.V6.Subnet
}

// mayHaveOurAddress reports whether a value may contain our public address. It
// spares decoding ten thousand values at the start. An IPv4 address is written
// in one form only, unless JSON escapes it.
func mayHaveOurAddress(cfg subnet.Config, want subnet.Lease, raw []byte) bool {
	return !cfg.V4.On() || bytes.Contains(raw, []byte(want.V4.PublicIP.String())) || bytes.IndexByte(raw, '\\') >= 0
}

// hasOurAddress reports whether v has our public address: the IPv4 one, or the
// IPv6 one in a network without IPv4.
func hasOurAddress(cfg subnet.Config, want subnet.Lease, v leaseValue) bool {
	if cfg.V4.On() {
		return v.PublicIP.IsValid() && v.PublicIP == want.V4.PublicIP
	}
	return v.PublicIPv6.IsValid() && v.PublicIPv6 == want.V6.PublicIP
}

// home is the key that this node gets: an existing one or a new one.
type home struct {
	existing *record      // nil: create the key of pick
	pick     subnet.Lease // the subnets of the new key
	former   []record     // the keys that the creation deletes: see replaceable
	how      string       // why this key, for the log
	claims   claims       // all keys with our address, for the log and errors
}

// chooseHome chooses our key by the table above type claims. It writes nothing. Acquire
// returns its error, such as a full network.
func (m *Manager) chooseHome(ctx context.Context, cfg subnet.Config, want subnet.Lease, records []record) (home, error) {
	h := home{claims: findClaims(cfg, want, records)}
	var err error
	// The first two rows, unless there is none of them.
	if h.existing, err = m.ownClaim(ctx, h.claims); h.existing != nil || err != nil {
		h.how = "it has our public address"
		return h, err
	}
	for _, r := range h.claims.misfits {
		if e := misfitOf(cfg, r); e != nil && isFiled(e.keeps, want) {
			return h, e // a new key could not have this subnet
		}
	}
	if h.former, err = m.replaceable(ctx, cfg, h.claims.misfits, want); err != nil {
		return h, err
	}
	// A new key. It comes before the other keys with our address (the third row) if it has
	// a subnet of the subnet file, and else after them (the last row).
	var full error // why there is no new key, such as a full network; it matters only if no existing one is used
	h.pick, h.how, full = m.candidate(cfg, want, records, h.former)
	if len(h.claims.leased)+len(h.claims.misfits) == 0 {
		return h, full
	}
	keepsFile := full == nil && isFiled(h.pick, want)
	if keepsFile {
		if keepsFile, err = m.mayWrite(ctx, m.keyOf(h.pick)); err != nil {
			return h, err
		}
	}
	if !keepsFile {
		if h.existing, err = m.firstWritable(ctx, h.claims.leased); h.existing != nil || err != nil {
			h.how = "it has our public address"
			return h, err
		}
		for _, r := range h.claims.misfits {
			if e := misfitOf(cfg, r); e != nil {
				if may, err := m.mayWrite(ctx, r.key); may || err != nil {
					return h, cmp.Or[error](err, e)
				}
			}
		}
	}
	return h, full
}

// ownClaim returns the claim that comes before every new key; nil: there is none. If a
// key has a subnet of the subnet file (filed), no new key can have that subnet, so the
// other keys with our address come before a new one, too. A single claim that is filed is
// used without asking for the permission, since there is no other one. If the user may
// write none of several claims, the oldest filed one is used.
func (m *Manager) ownClaim(ctx context.Context, c claims) (*record, error) {
	switch {
	case len(c.filed) == 0:
		return m.firstWritable(ctx, c.reservations)
	case len(c.filed) == 1 && len(c.reservations)+len(c.leased) == 0:
		return &c.filed[0], nil
	}
	own, err := m.firstWritable(ctx, slices.Concat(c.filed, c.reservations, c.leased))
	return cmp.Or(own, &c.filed[0]), err
}

// firstWritable returns the first of records that this node's etcd user may
// write; nil: there is none.
func (m *Manager) firstWritable(ctx context.Context, records []record) (*record, error) {
	for i := range records {
		may, err := m.mayWrite(ctx, records[i].key)
		if err != nil {
			return nil, err
		}
		if may {
			return &records[i], nil
		}
	}
	return nil, nil
}

// mayWrite reports whether this node's etcd user may write a key, which need not exist. It
// sends a transaction whose condition is always false: etcd checks the permission for the
// transaction's steps all the same, and writes nothing.
func (m *Manager) mayWrite(ctx context.Context, key string) (may bool, err error) {
	err = m.retry(ctx, "read our permissions", func(ctx context.Context) error {
		_, err := m.client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "<", 0)).
			Then(clientv3.OpPut(key, "", clientv3.WithIgnoreValue(), clientv3.WithIgnoreLease())).Commit()
		if may = err == nil; errors.Is(err, rpctypes.ErrPermissionDenied) {
			return nil // an answer, not a failure to retry
		}
		return err
	})
	return may, err
}

// keyOf returns the name of the key of a lease.
func (m *Manager) keyOf(l subnet.Lease) string {
	return m.subnets + formatKey(l.V4.Subnet, l.V6.Subnet)
}

// replaceable returns those of misfits that our new key replaces: this node's
// former leases. The subnet file proves that they are this node's, by want or by
// cfg.Filed. A key that only has our address may be another node's; if nobody renews its
// etcd lease, it expires. A reservation stays, because its operator may be about to
// change the configuration. Of more than maxFormer, the others stay until they expire.
func (m *Manager) replaceable(ctx context.Context, cfg subnet.Config, misfits []record, want subnet.Lease) (former []record, err error) {
	for _, r := range misfits {
		if len(former) == maxFormer {
			break
		}
		if r.kv.Lease == 0 {
			if misfitOf(cfg, r) != nil {
				continue // an error, or warnOthers names it
			}
			m.log.Warn("ignoring a reservation with our public address that does not fit the network configuration", "key", r.key)
			continue
		}
		if !isFiled(*r.lease, want) && !slices.Contains(cfg.Filed, r.lease.V4.Subnet) && !slices.Contains(cfg.Filed, r.lease.V6.Subnet) {
			continue
		}
		may, err := m.mayWrite(ctx, r.key)
		if err != nil {
			return nil, err
		}
		if may {
			former = append(former, r)
		}
	}
	return former, nil
}

// misfitError means that a reservation of this node has one of its subnets, but not those
// of the configuration, because its address families, or the network of one, have changed.
type misfitError struct {
	Key   string       // of the reservation
	Wants string       // the name of a key that fits
	keeps subnet.Lease // the subnets that fit
}

func (e *misfitError) Error() string {
	return fmt.Sprintf("the reservation %s does not have the subnets that the network configuration requires: "+
		"write %s as this node's reservation, and delete this key", e.Key, e.Wants)
}

// misfitOf returns the error of a misfit that is a reservation and has a subnet that fits;
// nil: r is none.
func misfitOf(cfg subnet.Config, r record) *misfitError {
	v4, v6 := keepSubnets(cfg, r.lease, nil) // nil: its own key has them
	if r.kv.Lease != 0 || !v4.IsValid() && !v6.IsValid() {
		return nil
	}
	wants := formatKey(v4, v6)
	if cfg.V4.On() && !v4.IsValid() {
		wants = strings.Replace(wants, noV4, "<IPv4 subnet>", 1)
	}
	if cfg.V6.On() && !v6.IsValid() {
		wants += "&<IPv6 subnet>"
	}
	return &misfitError{Key: r.key, Wants: wants, keeps: subnet.Lease{V4: subnet.Endpoint{Subnet: v4}, V6: subnet.Endpoint{Subnet: v6}}}
}

// warnOthers logs the claims other than key, which is used, and former, which are
// deleted. They are former leases of this node, or another node has the address.
func (m *Manager) warnOthers(key string, c claims, former []record) {
	var others []string
	for _, r := range c.all() {
		if r.key != key && !slices.ContainsFunc(former, func(f record) bool { return f.key == r.key }) {
			others = append(others, r.key)
		}
	}
	if count := len(others); count > 0 {
		m.log.Warn("other leases have our public address, and are not used",
			"cause", causeSeveralLeases, "key", key, "count", count, "others", strings.Join(others[:min(count, maxNamed)], " "))
	}
}

// maxFormer limits the keys that are deleted together with the creation of ours: a
// transaction of etcd has 128 conditions and 128 steps at most.
const maxFormer = 50

// maxNamed limits the keys in one log line.
const maxNamed = 5

// explainDenied explains why a new key could not be created: if there are keys
// with our address, this node's etcd user may write none of them.
func (m *Manager) explainDenied(err error, c claims) error {
	denied, ok := errors.AsType[*deniedError](err)
	if claimed := slices.Concat(c.reservations, c.leased); ok && len(claimed) > 0 {
		return fmt.Errorf("%w; if this key is another node's, only its public address is this node's: correct that, or set --public-ip",
			&deniedError{User: denied.User, Need: "readwrite", Key: claimed[0].key})
	}
	return err
}
