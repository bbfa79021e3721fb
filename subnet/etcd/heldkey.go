package etcd

import (
	"errors"
	"net/netip"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"flannel/subnet"
)

// heldKey is the key of our own lease: the value that it should have, the state
// in which we last saw it, and what follows from both. It is a pure state machine:
// observe and written record what the store has, step says what to do, and the
// caller (hold.go) makes the requests. ownLease.mu guards it, except key, v4 and v6.
//
// In the table, "the pause" is that of subnet.Conflict, up to 10 s. A mass withdrawal deletes so
// many keys at once that this probably is a mistake: then the peers of these keys are retained,
// which means used for some time as if the keys were there (package peerset). A store that was
// replaced is another or an older one (replaced.go). Rows of one state precede those of any.
//
//	state        cause                                      action of step                        next state
//	held         Publish wants another value                write it                              held
//	held         someone put the key on another etcd lease  none; the caller revokes ours         held
//	held         someone else changed the value             write, now or after the pause         overwritten
//	overwritten  someone else changes the value again       as before: the pause goes on          overwritten
//	             Publish wants what someone else wrote      none                                  held
//	any, not lost:
//	             our write succeeds                         none                                  held
//	             someone else restored the value            none                                  held
//	             the key was deleted                        wait for the rest of the burst        missing
//	             another node created the deleted key       none                                  lost
//	             another node's value, which a replaced
//	             store had, is written for the third time   none                                  lost
//	             it was created with an invalid value       write, now or after the pause         overwritten
//	             the store was replaced: no key, or another
//	             value                                      write now                             overwritten
//	missing      the peers still have it                    wait: their watch lags                missing
//	             few others were deleted, or the watch of
//	             the peers has not begun                    none                                  lost
//	             it is part of a mass withdrawal            write after a random time             withdrawn
//	             most of few peers were deleted with it     write now: none of them is retained   withdrawn
//	             an operator accepted the withdrawal        none                                  lost
//	withdrawn    the store was replaced and has no key      write now                             withdrawn
//	             restoreAt has come, the subnet is free     write                                 withdrawn
//	             restoreAt has come, the subnet is taken    none                                  lost
//	             an operator accepted the withdrawal        none                                  lost
//	lost         our write, begun before, creates the key   none                                  held
//
// Before the watch of the peers begins, nothing shows that a withdrawal is a mass withdrawal. An
// operator accepts one by the command accept-withdrawal on this node (AcceptWithdrawal). "Our
// write" is one of Publish or of Hold. While the key exists, Publish itself writes what it wants.
// It leaves a missing key to Hold, whose write may be on its way with the former value: hence
// step says write in held, too. A store restored from a backup may still have our etcd lease.
// If it does not, etcd rejects the write, and replaceLease chooses another one.
type heldKey struct {
	key    string           // never changes, as v4 and v6
	v4, v6 netip.Prefix     // the subnets in key; zero: none of the family
	id     clientv3.LeaseID // the etcd lease that the key should be on; NoLease: it is a reservation, which does not expire
	grant  bool             // id was not granted yet
	want   leaseValue       // as Publish wants it; before Publish, as Acquire found or created it
	// sent are the values of our writes since observe last saw a new revision of the key,
	// or written was called. Publish and Hold may write at the same time, and an answer may
	// be lost: any of the values may be in the store, and observe must recognize it as ours.
	// While the key is missing, sent stays: a write may create the key, and its event comes
	// later. A value whose write fails, because the key was changed meanwhile, does no harm in
	// sent: nobody else writes one of our values on our etcd lease.
	sent []leaseValue
	seen seen
	at   position // where in the store's history (replaced.go) Hold starts to follow the key

	state        keyState
	missingSince time.Time // in missing and withdrawn
	restoreAt    time.Time // in overwritten and withdrawn: when to write
	conflict     subnet.Conflict
	random       func(n time.Duration) time.Duration // rand.N, except in tests of the machine
	withdrawn    bool                                // newsWithdrawn was reported, and newsRestored was not
	why          string                              // in lost
	lostAt       int64                               // in lost: the revision of another node's key; 0: there is none
	news         []news                              // what happened, for the caller to log
}

// seen is what the store had when we last saw the key.
type seen struct {
	value        *leaseValue      // nil: unreadable, or the key is missing
	mod, created int64            // the key's ModRevision and CreateRevision, also once it is deleted; 0: a write creates it
	gone         int64            // a later revision at which the key was missing; 0: none
	id           clientv3.LeaseID // the etcd lease that the key was on
	// foreign: when we first saw the key in a replaced store, it had another node's value.
	// Either the backup has a former owner's, or a node that runs has created the key there.
	foreign bool
}

// keyState is a state of the table above heldKey. Their order counts: in those before
// missing, the key exists.
type keyState int

const (
	held keyState = iota
	overwritten
	missing
	withdrawn
	lost
)

// sight is what the store has, or had at a revision, for observe.
type sight struct {
	kv       *mvccpb.KeyValue // nil: the key is missing
	rev      int64            // only if kv is nil: a revision at which the key was missing
	replaced bool             // the store is another or an older one than before
}

// failedWrite returns the sight in the answer to a write whose condition (the key is as in
// s) was false: kv, or nil, at the revision rev. The answer is newer than s, so whatever is
// older in it belongs to another store.
func (s seen) failedWrite(kv *mvccpb.KeyValue, rev int64) sight {
	replaced := rev < max(s.mod, s.gone) || kv != nil && (kv.ModRevision < s.mod || kv.ModRevision <= s.gone)
	return sight{kv: kv, rev: rev, replaced: replaced}
}

// observe records what the store has. Sights may come late and in any order: from the
// watch, and as answers to writes. A missing key is deleted, unless the store was
// replaced: a replaced store does not know our key, and nobody deleted it. A key that was
// created again is lost only if judge says that another node can have it; anything else
// that is written under our name must not end us.
func (k *heldKey) observe(now time.Time, s sight, judge subnet.Judge) {
	switch {
	case k.state == lost:
		return
	case s.kv == nil && s.replaced:
		k.seen = seen{}
		if k.state == withdrawn {
			k.restoreAt = now // an operator may still accept the withdrawal if the write fails
		} else {
			k.storeReplaced(now)
		}
		return
	case s.kv == nil:
		if s.rev < k.seen.mod {
			return // we have written the key since
		}
		if k.seen.mod != 0 && k.state < missing { // mod 0: a replaced store lacks the key, and the write is still to come
			k.state, k.missingSince = missing, now
		}
		k.seen.gone = max(k.seen.gone, s.rev) // the answer to a write may be newer
		return
	case !s.replaced && s.kv.ModRevision <= max(k.seen.mod, k.seen.gone):
		return // our own write, or an event that is older than what we know
	}
	var value *leaseValue
	if v, err := decodeValue(s.kv.Value); err == nil {
		value = &v
	}
	// The key exists. First: whose is it? A key that was not deleted is ours, whatever its
	// value, and so is one of a replaced store. A key that was deleted may be another node's.
	// The deletion was seen before, or with the creation at once: then only CreateRevision
	// shows it. With mod 0, the replaced store had no key that could have been deleted.
	wasMissing := k.state == missing || k.state == withdrawn
	recreated := !s.replaced && k.seen.mod != 0 && s.kv.CreateRevision != k.seen.created
	if (wasMissing || recreated) && k.isOthers(value, judge) {
		k.loseTo(s.kv)
		return
	}
	// It is ours. Then: is it as it should be?
	foreign := k.seen.foreign
	if s.replaced || k.seen.mod == 0 {
		foreign = k.isOthers(value, judge)
	}
	k.seen = seen{value: value, mod: s.kv.ModRevision, created: s.kv.CreateRevision,
		id: clientv3.LeaseID(s.kv.Lease), foreign: foreign}
	sent := k.sent
	k.sent = nil
	switch {
	case k.matches():
		k.adopt()
	case s.replaced:
		k.storeReplaced(now)
	case value != nil && slices.ContainsFunc(sent, value.Equal) && k.seen.id == k.id:
		k.exists() // our own write, before Publish wanted another value
	default:
		// If another node has created the key, it restores the key as we do. Only one may go on.
		if round := k.changedByOthers(now); round >= 3 && foreign && k.isOthers(value, judge) {
			k.loseTo(s.kv)
		}
	}
}

// isOthers reports whether a value of our key, nil if it is unreadable, can be that of
// another node: whether it has other addresses than ours, and such a lease is valid. The node
// may have published it only in part, or with a configuration that this node has not adopted
// yet. Elsewhere is the judge of a node without our subnets and addresses: that of this node
// refuses them in a peer's lease.
func (k *heldKey) isOthers(value *leaseValue, judge subnet.Judge) bool {
	if value == nil || value.PublicIP == k.want.PublicIP && value.PublicIPv6 == k.want.PublicIPv6 {
		return false
	}
	l := k.leaseWith(*value)
	err := judge.Elsewhere().Check(&l)
	return err == nil || errors.Is(err, subnet.ErrPending) || errors.Is(err, subnet.ErrOtherConfig)
}

// sending records that a write of a value begins; see sent.
func (k *heldKey) sending(value leaseValue) {
	if !slices.ContainsFunc(k.sent, value.Equal) {
		k.sent = append(k.sent, value)
	}
}

// written records that our write succeeded, on an etcd lease and at a revision. The caller
// has checked that seen has not changed since the write began. It may end lost: step may
// have given up the deleted key while a write of Publish or Hold, begun before, created it.
func (k *heldKey) written(value *leaseValue, id clientv3.LeaseID, rev int64) {
	if k.state == lost && rev < k.lostAt {
		return // another node has created the key since
	}
	created := k.seen.created
	if k.seen.mod == 0 { // the write has created the key
		created = rev
	}
	k.seen, k.sent = seen{value: value, mod: rev, created: created, id: id, foreign: k.seen.foreign}, nil
	k.id, k.grant = id, false
	k.exists()
}

// matches reports whether the value when last seen is the one that we want.
func (k *heldKey) matches() bool { return k.seen.value != nil && k.seen.value.Equal(k.want) }

// adopt enters held, on the etcd lease on which the key is: someone may have made it a
// reservation, or the reverse.
func (k *heldKey) adopt() {
	if k.seen.id != k.id {
		k.news = append(k.news, news{what: newsMoved, from: k.id, to: k.seen.id})
	}
	k.id, k.grant = k.seen.id, false
	k.exists()
}

// exists enters held: nobody has to restore the key.
func (k *heldKey) exists() {
	k.state = held
	k.conflict.Restored()
	if k.withdrawn {
		k.withdrawn = false
		k.news = append(k.news, news{what: newsRestored})
	}
}

// storeReplaced enters overwritten, without a pause. In the store the key is missing, or
// has a value that we do not want.
func (k *heldKey) storeReplaced(now time.Time) {
	if k.state != overwritten {
		k.news = append(k.news, news{what: newsReplaced})
	}
	k.state, k.restoreAt = overwritten, now
}

// changedByOthers enters overwritten, with the pause of the conflict, which goes on if we
// are in it. The first and the third round are logged. round is that of Conflict.Changed.
func (k *heldKey) changedByOthers(now time.Time) (round int) {
	due, round := k.conflict.Changed(now, k.random)
	switch round {
	case 1:
		k.news = append(k.news, news{what: newsModified, value: k.seen.value})
	case 3:
		k.news = append(k.news, news{what: newsConflict, value: k.seen.value})
	}
	k.state, k.restoreAt = overwritten, due
	return round
}

// lose enters lost: Hold ends when it sees that (lostError). Only a write of ours that was
// begun before, and whose answer comes until then, ends lost (see written).
func (k *heldKey) lose(why string) { k.state, k.why = lost, why }

// loseTo enters lost, because another node has created the key.
func (k *heldKey) loseTo(kv *mvccpb.KeyValue) {
	k.lostAt = kv.ModRevision
	k.lose("the key is another node's now")
}

// replaceLease chooses the ID of a new etcd lease, to be granted before the next write. The
// store has rejected a write because it does not have the former one.
func (k *heldKey) replaceLease() { k.id, k.grant = newLeaseID(), true }

// others is what step must know of the other nodes' keys when ours is missing. holder.step
// asks the peerset.Keeper, which the watch of the peers fills. Before that watch, and in
// other states, only retain and accepted are set.
type others struct {
	haveOurs      bool          // that watch has not seen yet that our key is deleted
	massRetained  bool          // Keeper.MassRetained: so many keys are missing that their peers are retained
	mostWithdrawn bool          // Keeper.MostWithdrawn: most of a few peers' keys are missing
	claimed       bool          // Keeper.Claimed: another node has a subnet of our lease
	retain        time.Duration // how long the other nodes retain us
	accepted      time.Time     // when an operator accepted a withdrawal, by this node's clock; zero: never
}

// burst is the longest time between the first and the last event of one burst,
// as we receive them. Events of one burst come in any order.
const burst = 3 * time.Second

// step changes the state by what time and the other nodes' keys say. It returns
// whether to write the key now, and when to call step again although
// nothing was observed; zero: never. In lost, it returns false and zero: Hold ends.
//
// A deleted key means that our lease was revoked, and the daemon exits. But if
// most other keys are deleted together with it (etcdctl del --prefix, or an old
// snapshot without being recognized as one), nobody meant to revoke it, and hundreds
// of daemons that exit at once are an outage. Then the network stays as it is, and
// the key is written again.
func (k *heldKey) step(now time.Time, o others) (write bool, due time.Time) {
	if k.state == overwritten && k.matches() {
		k.adopt() // Publish wants what someone else wrote
	}
	switch k.state {
	case held:
		return !k.matches(), time.Time{}
	case missing, withdrawn:
		if end := k.stepMissing(now, o); end.After(now) {
			return false, end
		}
	}
	switch {
	case k.state == lost:
		return false, time.Time{}
	case k.restoreAt.After(now):
		return false, k.restoreAt
	case k.state == withdrawn:
		k.seen = seen{gone: k.seen.gone} // the write creates the key; what is older than gone stays outdated
	}
	return true, time.Time{}
}

// publishMustWrite reports whether Publish has to write the key: at once, also during the
// pause of a conflict, for the daemon calls Publish with a new lease. Hold writes a missing key.
func (k *heldKey) publishMustWrite() bool { return k.state < missing && !k.matches() }

// stepMissing is step in missing and withdrawn. It enters withdrawn or lost if it can be
// decided already why the key is missing. Otherwise it returns when that will be possible;
// else the zero Time.
func (k *heldKey) stepMissing(now time.Time, o others) (end time.Time) {
	if o.accepted.After(k.missingSince) {
		k.lose("the withdrawal was accepted")
		return time.Time{}
	}
	if k.state == missing {
		if o.haveOurs {
			// The two watches are independent: only when both have seen the deletion does the
			// set say how many others are missing.
			k.missingSince = now
		}
		switch end = k.missingSince.Add(burst); {
		case end.After(now):
			return end
		case !o.massRetained && !o.mostWithdrawn:
			k.lose("the key was deleted")
			return time.Time{}
		}
		k.state, k.restoreAt, k.withdrawn = withdrawn, now, true
		if o.massRetained {
			// Spread over all nodes, in 5 to 20 % of the time for which the others retain us: until
			// then, someone may restore the key.
			k.restoreAt = now.Add(o.retain/20 + k.random(o.retain*3/20))
		}
		k.news = append(k.news, news{what: newsWithdrawn})
	}
	if !k.restoreAt.After(now) && o.claimed {
		k.lose("another node has its subnet")
	}
	return time.Time{}
}

// lease returns our lease as it should be stored.
func (k *heldKey) lease() subnet.Lease { return k.leaseWith(k.want) }

// leaseWith returns the lease of our key with a value.
func (k *heldKey) leaseWith(v leaseValue) subnet.Lease {
	l := subnet.Lease{Name: k.key, Backend: v.BackendType}
	if k.v4.IsValid() {
		l.V4 = subnet.Endpoint{Subnet: k.v4, PublicIP: v.PublicIP, Data: v.Data}
	}
	if k.v6.IsValid() {
		l.V6 = subnet.Endpoint{Subnet: k.v6, PublicIP: v.PublicIPv6, Data: v.V6Data}
	}
	return l
}
