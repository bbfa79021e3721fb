package etcd

import (
	"context"
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"flannel/internal/test/etcdtest"
	"flannel/internal/test/eventually"
	"flannel/internal/test/nettest"
)

// short makes leases that end, and are renewed, while a test watches: every eight to ten seconds. A busy machine may
// stand still for the twenty seconds that are left then.
func short(o *Options) { o.TTL, o.RenewMargin = 30*time.Second, 20*time.Second }

func TestRenewExtendsTheSameLease(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t)
	st := outside(t, srv)
	n := start(t, srv.Endpoint(), short)
	l := n.publish(at("192.168.64.3"), mac1)
	_, id := st.value(l.Name)
	n.Run()
	st.renewed(id, 2)
	eventually.True(t, "its end is known", func() bool { return time.Until(n.Expires()) > 0 })
	if left := time.Until(n.Expires()); left > 30*time.Second {
		t.Errorf("%v are left of the lease of 30 s", left)
	}
	raw, now := st.value(l.Name)
	resp, _ := st.Get(t.Context(), l.Name)
	if now != id || st.etcdLeases() != 1 || raw != peer("192.168.64.3") || resp.Kvs[0].Version != 2 {
		t.Errorf("etcd lease %x, want %x; %d of them; version %d; %s", now, id, st.etcdLeases(), resp.Kvs[0].Version, raw)
	}
	n.notLost()
}

func TestLostLease(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(st store, key string)
	}{
		{"revoked", func(st store, key string) {
			_, id := st.value(key)
			if _, err := st.Revoke(t.Context(), id); err != nil {
				t.Error(err)
			}
		}},
		{"deleted", func(st store, key string) { st.Delete(t.Context(), key) }},
		{"given away", func(st store, key string) {
			st.Delete(t.Context(), key)
			st.Put(t.Context(), key, peer("192.168.64.77"))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			srv := etcdtest.Start(t)
			st := outside(t, srv)
			st.leavesNone("a lost lease", func() {
				n := start(t, srv.Endpoint(), nil)
				l := n.publish(at("192.168.64.3"), mac1)
				defer n.Run()()
				n.Sees("")
				c.do(st, l.Name)
				n.lost(soon)
				if raw, _ := st.value(l.Name); raw != "" && raw != peer("192.168.64.77") {
					t.Errorf("the key is there again: %s", raw)
				}
				st.Delete(t.Context(), l.Name)
			})
		})
	}
}

// Deleted, or expired, while we could not see it, with history compacted: noticed at the first look.
func TestLostWhileAway(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t)
	st := outside(t, srv)
	proxy := nettest.NewProxy(t, srv.Addr(), 0)
	n := start(t, "http://"+proxy.Addr(), short)
	n.publish(at("192.168.64.3"), mac1)
	n.Run()
	n.Sees("")
	proxy.BlackHole(true)
	eventually.True(t, "the lease has ended", func() bool { return st.etcdLeases() == 0 })
	srv.Compact()
	n.notLost()
	proxy.BlackHole(false)
	n.lost(soon) // 13 s for the keepalive, if the hole was shorter
}

func TestPutBack(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t)
	st := outside(t, srv)
	other, err := st.Grant(t.Context(), 3600)
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct {
		name, value string
		opts        []clientv3.OpOption
	}{
		{"damaged", "garbage", nil},
		{"taken over", peer("192.168.64.77"), nil},
		{"other data", `{"PublicIP":"192.168.64.3","BackendType":"vxlan","BackendData":` + mac2 + `}`, nil},
		{"on another lease", peer("192.168.64.77"), []clientv3.OpOption{clientv3.WithLease(other.ID)}},
		{"on ours", "garbage", []clientv3.OpOption{clientv3.WithIgnoreLease()}},
	} {
		t.Run(c.name, func(t *testing.T) {
			st := store{st.Client, t}
			n := start(t, srv.Endpoint(), nil)
			ip := fmt.Sprintf("192.168.65.%d", i)
			l := n.publish(at(ip), mac1)
			_, id := st.value(l.Name)
			stop := n.Run()
			eventually.True(t, "it watches", func() bool { return n.Peers() != "none" })
			if _, err := st.Put(t.Context(), l.Name, c.value, c.opts...); err != nil {
				t.Fatal(err)
			}
			eventually.True(t, "put back", func() bool { raw, now := st.value(l.Name); return raw == peer(ip) && now == id })
			n.notLost()
			if n.logs.Count("cause="+causeOverwritten) != 1 {
				t.Errorf("it says:\n%s", n.logs)
			}
			stop()
		})
	}
}

// A key that is written again without a lease and with the same meaning has become a reservation.
func TestBecomesReservation(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t)
	st := outside(t, srv)
	st.leavesNone("a key that becomes a reservation", func() {
		n := start(t, srv.Endpoint(), nil)
		l := n.publish(at("192.168.64.3"), mac1)
		stop := n.Run()
		n.Sees("")
		if _, err := st.Put(t.Context(), l.Name, peer("192.168.64.3")); err != nil {
			t.Fatal(err)
		}
		eventually.True(t, "it knows that its key does not expire", func() bool { return n.Expires().IsZero() })
		time.Sleep(3 * time.Second) // in which it gives its etcd lease up, and may not write again
		if raw, id := st.value(l.Name); raw != peer("192.168.64.3") || id != 0 {
			t.Errorf("%s on etcd lease %x", raw, id)
		}
		n.notLost()
		stop()
		st.Delete(t.Context(), l.Name)
	})
}

// Two nodes with one public address: both hold the same key. They must not drown etcd in writes, nor their logs.
func TestQuarrel(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t)
	st := outside(t, srv)
	a, b := start(t, srv.Endpoint(), nil), start(t, srv.Endpoint(), nil)
	l := a.publish(at("192.168.64.3"), mac1)
	a.Run()
	b.publish(at("192.168.64.3"), mac2)
	b.Run()
	writes := func() int64 {
		resp, err := st.Get(t.Context(), l.Name)
		if err != nil {
			t.Fatal(err)
		}
		return resp.Kvs[0].Version
	}
	began := time.Now()
	eventually.True(t, "they quarrel", func() bool { return writes() >= 4 })
	time.Sleep(time.Until(began.Add(6 * time.Second)))                             // in which the writes are counted
	v, most := writes(), 16+2*int64((time.Since(began)-6*time.Second)/time.Second) // a slow machine has time for more
	t.Logf("%d writes", v)
	if v > most {
		t.Errorf("%d writes, want %d at most", v, most)
	}
	for _, n := range []*node{a, b} {
		n.notLost()
		if c := n.logs.Count(); c > 4 {
			t.Errorf("%d lines:\n%s", c, n.logs)
		}
	}
}

// An etcd that comes back empty costs nobody anything: keys are put back, peers stay until theirs are.
func TestReplacedStore(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t)
	st := outside(t, srv)
	st.put("subnets/10.5.1.0-24", peer("192.168.64.1"))
	st.put("subnets/10.5.2.0-24", peer("192.168.64.2"))
	st.put("subnets/10.5.3.0-24", peer("192.168.64.3"))
	a := start(t, srv.Endpoint(), nil)
	l := a.publish(outOfTheWay("192.168.64.99"), mac1)
	a.Run()
	a.Sees("10.5.1.0-24 10.5.2.0-24 10.5.3.0-24")
	before, _ := a.Last()

	srv.Wipe()
	st = outside(t, srv)
	st.put("subnets/10.5.3.0-24", peer("192.168.64.3")) // is back
	for range 30 {
		st.put("whatever", "makes revisions") // the new store gets further than the old one was
	}
	eventually.True(t, "put back", func() bool { raw, id := st.value(l.Name); return raw == peer("192.168.64.99") && id != 0 })
	st.put("subnets/10.5.4.0-24", peer("192.168.64.4"))
	a.Sees("10.5.1.0-24 10.5.2.0-24 10.5.3.0-24 10.5.4.0-24")
	st.put("subnets/10.5.2.0-24", peer("192.168.64.2"))
	st.remove("subnets/10.5.3.0-24")                    // deleted indeed
	st.put("subnets/10.5.9.0-24", peer("192.168.64.1")) // is back, elsewhere
	a.Sees("10.5.2.0-24 10.5.4.0-24 10.5.9.0-24")
	after, _ := a.Last()
	// In a tie its age counts, which is that in the new store.
	if was, is := before.Leases[1], after.Leases[0]; !is.Equal(was) || is.Since == was.Since {
		t.Errorf("%s since %d was %s since %d", is, is.Since, was, was.Since)
	}
	a.notLost()
	if c := a.logs.Count("cause=" + causeStoreChanged); c != 2 {
		t.Errorf("it is said %d times, want once for our key and once for the peers:\n%s", c, a.logs)
	}
	if c := st.etcdLeases(); c != 1 {
		t.Errorf("%d etcd leases", c)
	}
	st.Delete(t.Context(), l.Name)
	a.lost(soon) // in the new store, a deletion is one
}

// An etcd restored from a backup knows an older value of our key, and lacks newer peers.
// The store goes back behind a write of ours whose event Hold has not received. The position that Hold was at is one of the
// restored store, too; only our own key tells them apart.
func TestRestoredBehindOurWrite(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t)
	st := outside(t, srv)
	n := start(t, srv.Endpoint(), nil)
	l := n.publish(outOfTheWay("192.168.64.99"), mac2)
	srv.Backup()
	l.V4.Data = []byte(mac1)
	if err := n.Publish(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	srv.Restore()
	n.Run()
	eventually.True(t, "put back", func() bool { raw, id := st.value(l.Name); return raw == peer("192.168.64.99") && id != 0 })
	n.notLost()
}

// In a replaced store, another node has created our key before we have connected. It may also be the lease of a former owner,
// so we write over it; but the other node restores it, and only one of the two may go on.
func TestReplacedStoreHasAnotherOwner(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t)
	outside(t, srv).put("whatever", "makes the position that Hold is at one that the other store has not reached")
	n := start(t, srv.Endpoint(), nil)
	n.SetJudge(judge(t))
	l := n.publish(outOfTheWay("192.168.64.99"), mac1)
	srv.Wipe()
	st := outside(t, srv)
	other := start(t, srv.Endpoint(), nil)
	if key := other.publish(outOfTheWay("192.168.64.77"), mac1).Name; key != l.Name {
		t.Fatalf("the other node has %s", key)
	}
	other.Run()
	other.Sees("")
	n.Run()
	n.lost(soon)
	eventually.True(t, "the other node has the key", func() bool { raw, _ := st.value(l.Name); return raw == peer("192.168.64.77") })
	other.notLost()
	if n.logs.Count("cause="+causeStoreChanged) == 0 || n.logs.Count("cause="+causeConflict) != 1 {
		t.Errorf("it has not tried to restore its lease:\n%s", n.logs)
	}
}

// Publish writes to a restored store although Hold has not told it that there is one.
func TestPublishToARestoredStore(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t)
	n := start(t, srv.Endpoint(), nil)
	l := n.publish(outOfTheWay("192.168.64.99"), mac2)
	srv.Backup()
	l.V4.Data = nil
	if err := n.Publish(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	srv.Restore()
	l.V4.Data = []byte(mac1)
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	if err := n.Publish(ctx, l); err != nil {
		t.Fatal(err)
	}
	if raw, id := outside(t, srv).value(l.Name); raw != peer("192.168.64.99") || id == 0 {
		t.Errorf("the key is %s on lease %x", raw, id)
	}
}

// Publish writes to a store that has lost everything, on a new etcd lease, although Hold has not noticed it.
func TestPublishToAnEmptiedStore(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t)
	n := start(t, srv.Endpoint(), nil)
	st := outside(t, srv)
	st.put("whatever", "makes revisions")
	l := n.publish(outOfTheWay("192.168.64.99"), mac2)
	srv.Wipe()
	l.V4.Data = []byte(mac1)
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	if err := n.Publish(ctx, l); err != nil {
		t.Fatal(err)
	}
	if raw, id := outside(t, srv).value(l.Name); raw != peer("192.168.64.99") || id == 0 {
		t.Errorf("the key is %s on lease %x", raw, id)
	}
}

func TestRestoredStore(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t)
	st := outside(t, srv)
	st.put("subnets/10.5.1.0-24", peer("192.168.64.1"))
	n := start(t, srv.Endpoint(), nil)
	l := n.publish(outOfTheWay("192.168.64.99"), mac2)
	srv.Backup()
	l.V4.Data = []byte(mac1)
	if err := n.Publish(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	st.put("subnets/10.5.2.0-24", peer("192.168.64.2"))
	n.Run()
	n.Sees("10.5.1.0-24 10.5.2.0-24")
	srv.Restore()
	eventually.True(t, "put back", func() bool { raw, id := st.value(l.Name); return raw == peer("192.168.64.99") && id != 0 })
	st.put("subnets/10.5.3.0-24", peer("192.168.64.3"))
	n.Sees("10.5.1.0-24 10.5.2.0-24 10.5.3.0-24")
	n.notLost()
}
