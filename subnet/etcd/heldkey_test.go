package etcd

import (
	"errors"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"flannel/subnet"
)

// world is a store with our key, the heldKey, and what is between the two: sights that were not received yet, and writes
// whose answers are lost.
type world struct {
	*rand.Rand
	now     time.Time
	k       *heldKey
	kv      *mvccpb.KeyValue          // as the store has it; nil: the key is missing
	leases  map[clientv3.LeaseID]bool // those of the store, and NoLease; at first 1 is ours, and 2 is of others
	rev     int64
	sights  []sight
	others  others
	mayLose bool      // something has happened after which the lease may be lost
	pause   time.Time // the end of the pause when it began
	early   int       // writes of Hold before that
	quiet   bool      // nobody else writes the key
}

// otherNodes is a Judge that refuses a lease with our address, as that of the daemon does. A node elsewhere may have it.
type otherNodes struct{ subnet.Trusting }

func (otherNodes) Check(l *subnet.Lease) error {
	if l.V4.PublicIP == netip.MustParseAddr("192.168.64.3") {
		return errors.New("our address")
	}
	return nil
}

func (otherNodes) Elsewhere() subnet.Judge { return subnet.Trusting{} }

func parseValue(t *testing.T, raw string) leaseValue {
	t.Helper()
	v, err := decodeValue([]byte(raw))
	must(t, err)
	return v
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{Rand: rand.New(rand.NewPCG(seed, 0)), now: time.Unix(1e9, 0), rev: 10, others: others{retain: time.Hour}}
	want := parseValue(t, peer("192.168.64.3"))
	w.k = &heldKey{key: "own", v4: netip.MustParsePrefix("10.5.1.0/24"), id: 1, want: want, seen: seen{value: &want, mod: 10, created: 10, id: 1}}
	w.k.random = func(n time.Duration) time.Duration { return time.Duration(w.Int64N(int64(n))) }
	w.kv = &mvccpb.KeyValue{Value: []byte(peer("192.168.64.3")), ModRevision: 10, CreateRevision: 10, Lease: 1}
	w.leases = map[clientv3.LeaseID]bool{clientv3.NoLease: true, 1: true, 2: true}
	return w
}

// put writes or deletes the key, as anybody may. The store rejects an etcd lease that it does not have.
func (w *world) put(value []byte, id clientv3.LeaseID) {
	if !w.leases[id] {
		return
	}
	w.rev++
	old := w.kv
	w.kv = nil
	if value != nil {
		w.kv = &mvccpb.KeyValue{Value: value, ModRevision: w.rev, CreateRevision: w.rev, Lease: int64(id)}
		if old != nil {
			w.kv.CreateRevision = old.CreateRevision
		}
	}
	w.sights = append(w.sights, sight{kv: w.kv, rev: w.rev})
}

// receive hands over n sights, or, as for events that come at once, the last one of them.
func (w *world) receive(n int) {
	n = min(n, len(w.sights))
	if skip := n - 1; skip > 0 && !w.sights[0].replaced && w.IntN(2) == 0 {
		w.sights, n = w.sights[skip:], 1
	}
	for range n {
		w.observe(w.sights[0])
		w.sights = w.sights[1:]
	}
}

func (w *world) observe(s sight) {
	before := w.k.state
	w.mayLose = w.mayLose || s.replaced && before >= missing // ours was deleted, and this may be another node's
	w.k.observe(w.now, s, otherNodes{})
	switch {
	case s.replaced:
		w.pause = time.Time{}
	case before != overwritten && w.k.state == overwritten:
		w.pause = w.k.restoreAt
	}
}

// write does what writeKey does. The answer may be lost, and Hold may receive events before it.
func (w *world) write(fails bool) {
	base, id, want := w.k.seen, w.k.id, w.k.want
	if w.k.grant {
		w.leases[id], w.k.grant = true, false
	}
	w.k.sending(want)
	if fails && w.IntN(2) == 0 {
		return // the request was lost
	}
	found := w.kv
	unchanged := base.mod == 0 && w.kv == nil || w.kv != nil && w.kv.ModRevision == base.mod
	done := unchanged && w.leases[id]
	if done {
		raw, _ := encodeValue(want)
		w.put(raw, id)
	}
	rev := w.rev
	if fails {
		return
	}
	if w.IntN(8) == 0 { // Publish is called
		w.k.want.Data = []byte(w.anyMAC())
		if w.IntN(2) == 0 { // and writes while Hold does
			w.write(w.IntN(2) == 0)
		}
	}
	w.receive(w.IntN(3))
	switch {
	case w.k.seen != base:
	case unchanged && !done: // ErrLeaseNotFound
		if w.k.id == id {
			w.k.replaceLease()
		}
	case done:
		w.k.written(&want, id, rev)
	default:
		w.observe(base.failedWrite(found, rev))
	}
}

// hold does what holder.keep does, until nothing is to be done now.
func (w *world) hold(t *testing.T, fails bool) (due time.Time) {
	for range 20 {
		pausing := w.k.state == overwritten && !w.k.matches() && w.pause.After(w.now)
		var write bool
		if write, due = w.k.step(w.now, w.others); !write {
			return due
		}
		if pausing {
			w.early++
		}
		if w.write(fails); fails {
			return w.now.Add(time.Second)
		}
	}
	t.Errorf("Hold writes without end")
	return time.Time{}
}

// anyMAC returns one of three values for Publish. With two, a value that a lost write has left is always one that Publish
// wants, or wrote last.
func (w *world) anyMAC() string { return []string{mac1, mac2, mac3}[w.IntN(3)] }

func (w *world) publish(t *testing.T, data string) {
	w.k.want = parseValue(t, `{"PublicIP":"192.168.64.3","BackendType":"vxlan","BackendData":`+data+`}`)
	for tries := 0; w.k.publishMustWrite(); tries++ {
		if w.write(false); tries == 20 {
			t.Errorf("Publish writes without end")
			return
		}
	}
}

// disturb does one of all that may happen.
func (w *world) disturb(t *testing.T) {
	op := w.IntN(12)
	if w.quiet && (op < 3 || op == 5 || op == 8) {
		op = 6
	}
	switch op {
	case 0:
		w.put([]byte("garbage"), clientv3.LeaseID(w.IntN(3)))
	case 1:
		w.put([]byte(peer("192.168.64.77")), 2)
		w.mayLose = w.mayLose || w.kv.CreateRevision != 10 // it is not the key that we had at first
	case 2:
		if w.kv != nil {
			w.mayLose = w.mayLose || string(w.kv.Value) == peer("192.168.64.77") // as of a former owner that is back
			w.put(w.kv.Value, clientv3.LeaseID(w.IntN(3)))
		}
	case 3: // together with most others
		w.put(nil, 0)
		w.others.massRetained = true
	case 4:
		if w.IntN(3) == 0 {
			w.put(nil, 0)
			w.mayLose = w.mayLose || !w.others.massRetained
		}
	case 5: // an empty store, or an older one
		w.kv, w.rev, w.sights = nil, 100+int64(w.IntN(2000)), nil
		if w.IntN(2) == 0 {
			w.leases = map[clientv3.LeaseID]bool{clientv3.NoLease: true, 2: true}
		}
		switch w.IntN(4) {
		case 0: // it has the lease of a former owner, from before ours
			w.kv = &mvccpb.KeyValue{Value: []byte(peer("192.168.64.77")), ModRevision: 5, CreateRevision: 5, Lease: 2}
		case 1, 2:
			id := w.k.id
			if !w.leases[id] || w.IntN(2) == 0 {
				id = 9
				w.leases[id] = true
			}
			w.rev++
			w.kv = &mvccpb.KeyValue{Value: []byte(peer("192.168.64.3")), ModRevision: w.rev, CreateRevision: w.rev, Lease: int64(id)}
		}
		w.sights = []sight{{kv: w.kv, rev: w.rev, replaced: true}}
	case 6:
		w.publish(t, w.anyMAC())
	case 7: // Hold lists the key again
		w.receive(len(w.sights))
		list := sight{kv: w.kv, rev: w.rev}
		if w.IntN(2) == 0 {
			w.publish(t, w.anyMAC())
		}
		w.observe(list)
	case 8: // our address, and other data, as somebody restores an older value of the key
		w.put([]byte(strings.ReplaceAll(peer("192.168.64.3"), mac1, vtep(9))), clientv3.LeaseID(w.IntN(3)))
	default:
		if w.receive(w.IntN(4)); len(w.sights) > 0 && w.sights[0].replaced {
			w.receive(1) // Hold notices it earlier than a burst is over
		}
		w.now = w.now.Add(time.Duration(w.IntN(5000)) * time.Millisecond)
	}
}

// Whatever happens to our key and to our writes: in the end it is as Publish wants it, on the etcd lease that is renewed,
// or it is lost for a reason. No pause of a conflict is cut short, and no etcd lease of ours is left over without the key.
func TestHeldKeyModel(t *testing.T) {
	t.Parallel()
	for range 10_000 {
		seed := rand.Uint64()
		w := newWorld(t, seed)
		w.quiet = w.IntN(4) == 0
		for range 1 + w.IntN(30) {
			w.disturb(t)
			w.hold(t, w.IntN(4) == 0)
		}
		for due := w.now; !due.IsZero(); due = w.hold(t, false) {
			w.receive(len(w.sights))
			w.now = slices.MaxFunc([]time.Time{due, w.now}, time.Time.Compare)
		}
		w.receive(len(w.sights))
		raw, _ := encodeValue(w.k.want)
		unused := maps.Clone(w.leases)
		// 9 is of an earlier run. w.k.id: if the key is lost, lostError revokes it.
		for _, id := range []clientv3.LeaseID{clientv3.NoLease, 2, 9, w.k.id} {
			delete(unused, id)
		}
		for _, n := range w.k.news {
			delete(unused, n.from) // the caller revokes it
		}
		switch state := w.k.state; {
		case t.Failed():
			t.Errorf("seed %d", seed)
		case w.early > 0:
			t.Errorf("seed %d: %d writes before the end of a pause", seed, w.early)
		case w.quiet && slices.ContainsFunc(w.k.news, func(n news) bool { return n.what == newsModified }):
			t.Errorf("seed %d: our own write is taken for another's", seed)
		case len(unused) > 0:
			t.Errorf("seed %d: %d etcd leases are left over", seed, len(unused))
		case state == lost && !w.mayLose:
			t.Errorf("seed %d: lost because %s", seed, w.k.why)
		case state == lost:
		case state != held || w.k.withdrawn:
			t.Errorf("seed %d: in state %d, withdrawn: %t", seed, state, w.k.withdrawn)
		case w.kv == nil || string(w.kv.Value) != string(raw):
			t.Errorf("seed %d: the store has %v", seed, w.kv)
		case w.kv.Lease != int64(w.k.id):
			t.Errorf("seed %d: on etcd lease %d, and %d is renewed", seed, w.kv.Lease, w.k.id)
		}
		if t.Failed() {
			return
		}
	}
}

// The answer to our write may arrive after another node's key, which is newer or older than the write.
func TestAnswerAfterLost(t *testing.T) {
	for rev, want := range map[int64]keyState{20: lost, 40: held} {
		w := newWorld(t, 1)
		value := w.k.want
		w.k.observe(w.now, sight{kv: &mvccpb.KeyValue{Value: []byte(peer("192.168.64.9")), ModRevision: 30, CreateRevision: 30}}, otherNodes{})
		if w.k.state != lost {
			t.Fatal("another node's key does not end Hold")
		}
		w.k.written(&value, 1, rev)
		if w.k.state != want {
			t.Errorf("after a write at %d: state %d, want %d", rev, w.k.state, want)
		}
	}
}

// While the answer to the write that restores a withdrawn key is missing, an event from before the deletion changes nothing.
func TestWithdrawnWriteUnanswered(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	k := w.k
	k.observe(w.now, sight{rev: 30}, otherNodes{})
	k.state = withdrawn
	if write, _ := k.step(w.now, w.others); !write {
		t.Fatal("step does not restore the key")
	}
	k.sending(k.want)
	for name, value := range map[string]string{"our own": peer("192.168.64.3"), "another node's": peer("192.168.64.9")} {
		old := &mvccpb.KeyValue{Value: []byte(value), ModRevision: 20, CreateRevision: 20, Lease: 1}
		if k.observe(w.now, sight{kv: old}, otherNodes{}); k.state != withdrawn {
			t.Fatalf("after an old event with %s value: state %d", name, k.state)
		}
	}
}

// Another node's value that is written again and again ends us only if the other node can have created the key: in a
// replaced store, before we wrote there.
func TestForeignKey(t *testing.T) {
	t.Parallel()
	at := func(rev, created int64) *mvccpb.KeyValue {
		return &mvccpb.KeyValue{Value: []byte(peer("192.168.64.77")), ModRevision: rev, CreateRevision: created, Lease: 2}
	}
	for _, c := range []struct {
		name    string
		sights  []sight // before the conflict
		created int64
		want    keyState
	}{
		{"our store", nil, 10, overwritten},
		{"the replaced store has it", []sight{{kv: at(15, 15), replaced: true}}, 15, lost},
		{"it is created in the replaced store before our write", []sight{{rev: 12, replaced: true}, {kv: at(15, 15)}}, 15, lost},
		{"we create it in the replaced store", []sight{{rev: 12, replaced: true}}, 20, overwritten},
		{"another replaced store has ours", []sight{{kv: at(15, 15), replaced: true},
			{kv: &mvccpb.KeyValue{Value: []byte(peer("192.168.64.3")), ModRevision: 5, CreateRevision: 5, Lease: 1}, replaced: true}}, 5, overwritten},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 0)
			for _, s := range c.sights {
				w.k.observe(w.now, s, otherNodes{})
			}
			for round := int64(0); round < 3 && w.k.state != lost; round++ {
				w.now = w.now.Add(20 * time.Second)
				if write, _ := w.k.step(w.now, w.others); write {
					w.k.written(&w.k.want, 1, 20+2*round)
				}
				if w.k.state != held {
					t.Fatalf("round %d begins in state %d", round+1, w.k.state)
				}
				w.k.observe(w.now, sight{kv: at(21+2*round, c.created)}, otherNodes{})
			}
			if w.k.state != c.want {
				t.Errorf("state %d, want %d", w.k.state, c.want)
			}
		})
	}
}

// What step decides about a key that is missing, by what it knows of the other nodes' keys.
func TestStepMissing(t *testing.T) {
	t.Parallel()
	since := time.Unix(1e9, 0)
	soonAfter, over := since.Add(time.Second), since.Add(burst)
	for _, c := range []struct {
		name      string
		from      keyState
		restoreAt time.Time
		replaced  bool // the store is replaced by an empty one
		now       time.Time
		others    others
		want      keyState
		write     bool
		due       time.Time
	}{
		{name: "in a burst", from: missing, now: soonAfter, want: missing, due: over},
		{name: "alone", from: missing, now: over, want: lost},
		{name: "the peers still have it", from: missing, now: over, others: others{haveOurs: true}, want: missing, due: over.Add(burst)},
		{name: "accepted although the peers still have it", from: missing, now: over,
			others: others{haveOurs: true, accepted: soonAfter}, want: lost},
		{name: "accepted in a burst", from: missing, now: over.Add(-1), others: others{accepted: soonAfter}, want: lost},
		{name: "accepted earlier", from: missing, now: over, others: others{massRetained: true, accepted: since}, want: withdrawn,
			due: over.Add(3 * time.Minute)},
		{name: "a mass withdrawal", from: missing, now: over, others: others{massRetained: true}, want: withdrawn, due: over.Add(3 * time.Minute)},
		{name: "most of few", from: missing, now: over, others: others{mostWithdrawn: true}, want: withdrawn, write: true},
		{name: "most of few, and the subnet is taken", from: missing, now: over, others: others{mostWithdrawn: true, claimed: true}, want: lost},
		{name: "not yet restored", from: withdrawn, restoreAt: over, now: soonAfter, others: others{claimed: true}, want: withdrawn, due: over},
		{name: "restored", from: withdrawn, restoreAt: over, now: over, want: withdrawn, write: true},
		{name: "taken", from: withdrawn, restoreAt: over, now: over, others: others{claimed: true}, want: lost},
		{name: "accepted", from: withdrawn, restoreAt: over, now: soonAfter, others: others{accepted: soonAfter}, want: lost},
		{name: "the store is replaced", from: withdrawn, restoreAt: over, replaced: true, now: soonAfter, want: withdrawn, write: true},
		{name: "accepted, and the store is replaced", from: withdrawn, restoreAt: over, replaced: true, now: soonAfter,
			others: others{accepted: soonAfter}, want: lost},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			k := newWorld(t, 0).k
			k.random = func(time.Duration) time.Duration { return 0 }
			k.state, k.missingSince, k.restoreAt = c.from, since, c.restoreAt
			if c.replaced {
				k.observe(c.now, sight{rev: 1, replaced: true}, otherNodes{})
			}
			c.others.retain = time.Hour
			write, due := k.step(c.now, c.others)
			if k.state != c.want || write != c.write || !due.Equal(c.due) {
				t.Errorf("state %d, write %t, due %v; want %d, %t, %v", k.state, write, due, c.want, c.write, c.due)
			}
		})
	}
}
