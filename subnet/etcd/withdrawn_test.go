package etcd

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"flannel/internal/test/etcdtest"
	"flannel/internal/test/eventually"
	"flannel/pkg/reconcile"
	"flannel/subnet"
	"flannel/subnet/peerset"
)

// soon is how long a test waits for what takes seconds.
const soon = 5 * time.Minute

// among is a node with a lease among peers 1 to n, which sees them all.
func among(t *testing.T, srv *etcdtest.Server, n int) (st store, us *node, key, all string) {
	t.Helper()
	st = outside(t, srv)
	var names []string
	for i := range n {
		names = append(names, st.addPeer(i+1))
	}
	// A twentieth of the retention, at least, is left to see that our key is withdrawn, and hasNow ends it.
	us = start(t, srv.Endpoint(), func(o *Options) { o.Retain = time.Hour })
	key = us.publish(outOfTheWay("192.168.64.99"), mac1).Name
	us.Run()
	all = strings.Join(names, " ")
	us.Sees(all)
	return st, us, key, all
}

func (s store) addPeer(i int) (name string) {
	s.t.Helper()
	name = fmt.Sprintf("10.5.%d.0-24", i)
	s.put("subnets/"+name, peerOf(fmt.Sprintf("192.168.64.%d", i), "", i))
	return name
}

// deleteAll is etcdctl del --prefix.
func (s store) deleteAll() {
	s.t.Helper()
	if _, err := s.Delete(s.t.Context(), base+"/subnets/", clientv3.WithPrefix()); err != nil {
		s.t.Fatal(err)
	}
}

// hasNow makes putting our key back due, which is left to chance otherwise.
func (n *node) hasNow(t *testing.T) {
	t.Helper()
	eventually.True(t, "it is going to put its key back", func() bool {
		n.own.mu.Lock()
		defer n.own.mu.Unlock()
		if n.own.held.state != withdrawn {
			return false
		}
		n.own.held.restoreAt = time.Now()
		return true
	})
	reconcile.Notify(n.own.check)
}

func (n *node) retains(t *testing.T, count int) {
	t.Helper()
	eventually.True(t, fmt.Sprintf("%d are retained", count), func() bool { s, _ := n.Last(); return len(s.Retained) == count })
}

// Somebody deletes all keys: peers stay, our own key is put back, and who comes back is a peer like any other.
func TestAllDeleted(t *testing.T) {
	t.Parallel()
	st, n, key, all := among(t, etcdtest.Start(t), 6)
	before, _ := n.Last()
	st.deleteAll()
	n.retains(t, 6)
	eventually.True(t, "our own was withdrawn, too", func() bool { s, _ := n.Last(); return s.OwnWithdrawn })
	n.hasNow(t)
	eventually.True(t, "put back", func() bool { raw, id := st.value(key); return raw == peer("192.168.64.99") && id != 0 })
	eventually.True(t, "and known to be", func() bool { s, _ := n.Last(); return !s.OwnWithdrawn })
	for i := range 6 {
		st.addPeer(i + 1)
	}
	n.retains(t, 0)
	after, _ := n.Last()
	for i, l := range before.Leases {
		if !after.Leases[i].Equal(l) {
			t.Errorf("%v became %v", l, after.Leases[i])
		}
	}
	n.Sees(all)
	n.notLost()
	if c := n.logs.Count("level=ERROR"); c != 2 {
		t.Errorf("%d errors, want one about the peers and one about our key", c)
	}
	st.Delete(t.Context(), key)
	n.lost(soon) // alone, a deletion is one
}

// Of a few peers none is retained, but they and our own key do not go together by chance.
func TestFewAndOwnDeleted(t *testing.T) {
	t.Parallel()
	st, n, key, _ := among(t, etcdtest.Start(t), 2)
	_, before := st.value(key)
	st.deleteAll()
	eventually.True(t, "put back", func() bool { raw, id := st.value(key); return raw == peer("192.168.64.99") && id != 0 })
	n.notLost()
	if _, id := st.value(key); id != before {
		t.Errorf("etcd's lease is %d, was %d", id, before)
	}
}

// The order of a burst says nothing: our key may be the first that goes. So that the burst does not end before the test
// deletes the others, Hold is shown a set that has our key until the others are gone.
func TestOwnDeletedFirst(t *testing.T) {
	t.Parallel()
	st, n, key, all := among(t, etcdtest.Start(t), 6)
	seen, l := n.watched.Peers(), at("192.168.64.99")
	l.Name, l.V4.Subnet = key, netip.MustParsePrefix("10.5.250.0/24")
	late := peerset.NewKeeper(key, n.retain, false, n.logs.Logger(), func(subnet.Set) {})
	late.ApplyAll([]peerset.Change{{Name: key, Entry: peerset.Entry{Lease: &l}}}, false)
	n.watched.Follow(late)
	st.Delete(t.Context(), key)
	eventually.True(t, "it has noticed", func() bool {
		n.own.mu.Lock()
		defer n.own.mu.Unlock()
		return n.own.held.state == missing
	})
	st.deleteAll()
	n.retains(t, 6)
	n.watched.Follow(seen)
	n.hasNow(t)
	eventually.True(t, "put back", func() bool { raw, _ := st.value(key); return raw == peer("192.168.64.99") })
	n.Sees(all)
	n.notLost()
}

// Our key and the others' are followed by two streams. That of the others may be far behind, for it has more to list.
func TestOwnIsMissedFirst(t *testing.T) {
	t.Parallel()
	st, n, key, _ := among(t, etcdtest.Start(t), 0)
	late := peerset.NewKeeper(key, n.retain, false, n.logs.Logger(), func(subnet.Set) {})
	var all, gone []peerset.Change
	for i := range 7 {
		l := at(fmt.Sprintf("192.168.64.%d", i))
		l.Name, l.V4.Subnet = fmt.Sprintf("%s/subnets/10.5.%d.0-24", base, i), netip.MustParsePrefix(fmt.Sprintf("10.5.%d.0/24", i))
		if i == 0 {
			l.Name = key
		}
		all = append(all, peerset.Change{Name: l.Name, Entry: peerset.Entry{Lease: &l}})
		gone = append(gone, peerset.Change{Name: l.Name, Deleted: true})
	}
	late.ApplyAll(all, false)
	n.watched.Follow(late)
	st.deleteAll()
	over := func() (since time.Time) { // the time of a burst, if it is not over by itself
		eventually.True(t, "its key is missed", func() bool {
			n.own.mu.Lock()
			defer n.own.mu.Unlock()
			if n.own.held.state == missing {
				n.own.held.missingSince = n.own.held.missingSince.Add(-burst)
			}
			return n.own.held.state == missing || n.own.held.state == withdrawn
		})
		since = time.Now()
		reconcile.Notify(n.own.check)
		return since
	}
	since := over()
	eventually.True(t, "it waits for the others", func() bool {
		n.notLost()
		n.own.mu.Lock()
		defer n.own.mu.Unlock()
		return n.own.held.missingSince.After(since)
	})
	late.Apply(gone, false)
	over()
	n.hasNow(t)
	eventually.True(t, "put back", func() bool { raw, _ := st.value(key); return raw == peer("192.168.64.99") })
	n.notLost()
}

// What is published while our key is missing is what it will hold.
func TestPublishWhileWithdrawn(t *testing.T) {
	t.Parallel()
	st, n, key, _ := among(t, etcdtest.Start(t), 6)
	l := at("192.168.64.99")
	l.V4.Subnet, l.Backend, l.V4.Data = netip.MustParsePrefix("10.5.250.0/24"), "vxlan", []byte(mac2)
	st.deleteAll()
	if err := n.Publish(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	n.hasNow(t)
	eventually.True(t, "put back", func() bool {
		raw, _ := st.value(key)
		return raw == strings.ReplaceAll(peer("192.168.64.99"), mac1, mac2)
	})
	n.notLost()
}

// A few that go, go at once, and our own lease with them.
func TestFewDeleted(t *testing.T) {
	t.Parallel()
	st, n, key, _ := among(t, etcdtest.Start(t), 6)
	for i := range 3 {
		st.remove(fmt.Sprintf("subnets/10.5.%d.0-24", i+1))
	}
	n.Sees("10.5.4.0-24 10.5.5.0-24 10.5.6.0-24")
	st.Delete(t.Context(), key)
	n.lost(soon)
}

func TestWithdrawalAccepted(t *testing.T) {
	t.Parallel()
	st, n, key, _ := among(t, etcdtest.Start(t), 6)
	st.deleteAll()
	n.retains(t, 6)
	eventually.True(t, "our own was withdrawn, too", func() bool { s, _ := n.Last(); return s.OwnWithdrawn })
	if count := n.AcceptWithdrawal(); count != 6 || n.Peers() != "" {
		t.Errorf("%d were let go, want 6; it sees %q", count, n.Peers())
	}
	n.lost(soon)
	if raw, _ := st.value(key); raw != "" {
		t.Errorf("the key is there: %s", raw)
	}
	if count := n.AcceptWithdrawal(); count != 0 {
		t.Errorf("%d were let go the second time", count)
	}
}

// What was ours is given to another node, or put back by somebody else, while we wait to put it back.
func TestWithdrawnAndThere(t *testing.T) {
	for _, c := range []struct {
		name, key, value string
		lost             bool
	}{
		{"restored", "10.5.250.0-24", peer("192.168.64.99"), false},
		{"restored as it was earlier", "10.5.250.0-24", strings.ReplaceAll(peer("192.168.64.99"), mac1, mac2), false},
		{"given away", "10.5.250.0-24", peer("192.168.64.77"), true},
		{"given away to a node with another VNI", "10.5.250.0-24", strings.ReplaceAll(peer("192.168.64.77"), `"VNI":1`, `"VNI":77`), true},
		{"given away with another's family", "10.5.250.0-24&2001:cafe:42:7::-64", peerOf("192.168.64.77", "fc00::77", 77), true},
		// These lose against our lease on every node, ours included.
		{"in a larger subnet", "10.5.250.0-23", peer("192.168.64.77"), false},
		{"in a smaller subnet", "10.5.250.0-25", peer("192.168.64.77"), false},
		{"our address elsewhere", "10.5.249.0-24", peer("192.168.64.99"), false},
		{"unreadable", "10.5.250.0-24", "garbage", false},
		{"with an address that no node has", "10.5.250.0-24", peer("224.0.0.1"), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			st, n, key, _ := among(t, etcdtest.Start(t), 6)
			n.SetJudge(judge(t))
			st.deleteAll()
			eventually.True(t, "our own was withdrawn, too", func() bool { s, _ := n.Last(); return s.OwnWithdrawn })
			st.put("subnets/"+c.key, c.value)
			if elsewhere := c.key != "10.5.250.0-24"; elsewhere {
				eventually.True(t, "it is seen", func() bool { return strings.Contains(n.Peers(), c.key) })
				n.hasNow(t)
			}
			if !c.lost {
				eventually.True(t, "it is ours again", func() bool {
					s, _ := n.Last()
					raw, _ := st.value(key)
					return !s.OwnWithdrawn && raw == peer("192.168.64.99")
				})
				n.notLost()
				return
			}
			n.lost(soon)
			if raw, _ := st.value(base + "/subnets/" + c.key); raw != c.value {
				t.Errorf("the other's key is %s", raw)
			}
		})
	}
}

// A store that is restored as etcd's manual has it for clusters with watches is the same store, by all that it tells:
// what came after the snapshot seems to be deleted.
func TestSnapshotRestored(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t)
	first := outside(t, srv)
	first.addPeer(1)
	srv.Snapshot()
	_, n, key, all := among(t, srv, 6)
	srv.RestoreSnapshot()
	st := outside(t, srv)
	n.retains(t, 5)
	n.hasNow(t)
	eventually.True(t, "put back", func() bool { raw, id := st.value(key); return raw == peer("192.168.64.99") && id != 0 })
	n.Sees(all)
	n.notLost()
	st.addPeer(7)
	n.Sees(all + " 10.5.7.0-24")
}

// The snapshot has our key, with an older value; and a peer's, which is how it shows that the store is an older one.
func TestSnapshotWithOlderValues(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t)
	st, n, key, all := among(t, srv, 6)
	srv.Snapshot()
	l := at("192.168.64.99")
	l.V4.Subnet, l.Backend, l.V4.Data = netip.MustParsePrefix("10.5.250.0/24"), "vxlan", []byte(mac2)
	if err := n.Publish(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	want, lease := st.value(key)
	n.Sees(all + " " + st.addPeer(7))
	st.put("subnets/10.5.1.0-24", strings.ReplaceAll(peerOf("192.168.64.1", "", 1), vtep(1), mac2))
	eventually.True(t, "a change of what the snapshot has", func() bool { s, _ := n.Last(); return strings.Contains(string(s.Leases[0].V4.Data), "8f:45") })
	expires := n.Expires()
	srv.RestoreSnapshot()
	st = outside(t, srv)
	eventually.True(t, "put right", func() bool { raw, _ := st.value(key); return raw == want })
	n.retains(t, 1)
	n.Sees(all + " 10.5.7.0-24")
	n.notLost()
	// The snapshot has the node's etcd lease, too. etcd starts its time again.
	if _, id := st.value(key); id != lease || st.etcdLeases() != 1 {
		t.Errorf("the key is on etcd lease %x, was on %x; there are %d", id, lease, st.etcdLeases())
	}
	eventually.True(t, "the remaining time is read from the restored store", func() bool { return !n.Expires().Equal(expires) })
}
