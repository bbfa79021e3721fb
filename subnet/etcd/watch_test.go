package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"flannel/internal/test/etcdtest"
	"flannel/internal/test/eventually"
	"flannel/internal/test/logtest"
	"flannel/internal/test/nettest"
	"flannel/subnet"
)

func TestWatchPeers(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t)
	st := outside(t, srv)
	st.put("subnets/10.5.20.0-24", peer("192.168.64.20"))
	st.put("subnets/10.5.3.0-24", peer("192.168.64.3"))
	n := start(t, srv.Endpoint(), nil)
	n.publish(outOfTheWay("192.168.64.99"), mac1)
	n.Run()
	n.Sees("10.5.3.0-24 10.5.20.0-24")
	first, _ := n.Last()

	// Garbage beside and among the leases disturbs none of them.
	st.put("subnets-backup/10.5.4.0-24", peer("192.168.64.4"))
	st.put("subnets", "garbage")
	for i, name := range []string{"foo", "10.5.5.0-33", "10.5.6.1-24", "a/10.5.7.0-24", ""} {
		st.put("subnets/"+name, peer(fmt.Sprintf("192.168.64.%d", i+30)))
	}
	st.put("subnets/10.5.8.0-24", "garbage")
	st.put("subnets/10.5.9.0-24", `{"PublicIP":"none"}`)
	st.put("subnets/10.5.10.0-24", `{"PublicIP":"1.2.3.4","BackendData":"`+strings.Repeat("x", 70_000)+`"}`)
	n.Sees("10.5.3.0-24 10.5.20.0-24 [] [10.5.10.0-24] [10.5.5.0-33] [10.5.6.1-24] [10.5.8.0-24] [10.5.9.0-24] [a/10.5.7.0-24] [foo]")
	set, _ := n.Last()
	for _, r := range set.Rejects {
		if len(r.Reason) > 200 || r.Reason == "" {
			t.Errorf("%s: reason of %d bytes: %s", r.Name, len(r.Reason), r.Reason)
		}
	}
	for i := range first.Leases {
		if set.Leases[i] != first.Leases[i] {
			t.Errorf("%s: another pointer, but nothing changed", set.Leases[i].Name)
		}
	}

	// Written again with the same meaning: no call, same pointer. Then changed, added, removed.
	_, calls := n.Last()
	st.put("subnets/10.5.3.0-24", strings.ReplaceAll(peer("192.168.64.3"), ",", " , "))
	st.put("subnets/10.5.4.0-24", peer("192.168.64.4"))
	st.remove("subnets/foo")
	n.Sees("10.5.3.0-24 10.5.4.0-24 10.5.20.0-24 [] [10.5.10.0-24] [10.5.5.0-33] [10.5.6.1-24] [10.5.8.0-24] [10.5.9.0-24] [a/10.5.7.0-24]")
	set, now := n.Last()
	if set.Leases[0] != first.Leases[0] || now > calls+2 {
		t.Errorf("the pointer was kept: %v; %d calls, want 2 at most", set.Leases[0] == first.Leases[0], now-calls)
	}
	old := set.Leases[2]
	st.put("subnets/10.5.20.0-24", strings.Replace(peer("192.168.64.20"), ":44", ":55", 1))
	eventually.True(t, "changed lease", func() bool {
		s, _ := n.Last()
		return strings.Contains(string(s.Leases[2].V4.Data), ":55")
	})
	if strings.Contains(string(old.V4.Data), ":55") {
		t.Error("a lease that was handed out was written to")
	}
	st.Delete(t.Context(), base+"/subnets/", clientv3.WithPrefix(), clientv3.WithRange(base+"/subnets/10.5.4.0-25"))
	for _, name := range []string{"", "10.5.10.0-24", "10.5.20.0-24", "10.5.3.0-24", "10.5.4.0-24", "10.5.5.0-33", "10.5.6.1-24", "10.5.8.0-24", "10.5.9.0-24", "a/10.5.7.0-24"} {
		st.remove("subnets/" + name)
	}
	n.Sees("")
}

// fill puts n peers into the store, 100 in a transaction.
func (s store) fill(n int) {
	s.t.Helper()
	for i := 0; i < n; i += 100 {
		var ops []clientv3.Op
		for k := i; k < min(i+100, n); k++ {
			ops = append(ops, clientv3.OpPut(fmt.Sprintf("%s/subnets/10.%d.%d.0-24", base, 100+k/256, k%256), peer(fmt.Sprintf("192.168.%d.%d", k/256, k%256))))
		}
		if _, err := s.Txn(s.t.Context()).Then(ops...).Commit(); err != nil {
			s.t.Fatal(err)
		}
	}
}

// From New to the first complete set and a published lease: a handful of requests, however many peers there are.
func TestFewRoundTrips(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t)
	outside(t, srv).fill(10_000)
	const oneWay = 20 * time.Millisecond
	proxy := nettest.NewProxy(t, srv.Addr(), oneWay)
	began := time.Now()
	n := start(t, "http://"+proxy.Addr(), nil)
	n.acquire(at("192.168.255.3"))
	acquired := time.Since(began)
	n.Run()
	eventually.True(t, "10,000 peers", func() bool { s, _ := n.Last(); return len(s.Leases) == 10_000 })
	took, calls := time.Since(began), n.tracker.calls.Load()
	t.Logf("acquired after %v, all peers after %v, %v round trips of %v, %d requests", acquired, took, int(took/(2*oneWay)), 2*oneWay, calls)
	// three pages, grant, claim; TimeToLive, check and two watches run side by side
	// 9 as a rule; a machine that stands still repeats some. A request for each peer would be 10,000.
	if calls > 40 {
		t.Errorf("%d requests in %v", calls, took)
	}
}

// One change among 10,000 leases costs neither a list nor a look at the others.
func TestOneChangeAmongMany(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t)
	st := outside(t, srv)
	st.fill(10_000)
	n := start(t, srv.Endpoint(), nil)
	n.acquire(at("192.168.255.3"))
	n.Run()
	eventually.True(t, "10,000 peers", func() bool { s, _ := n.Last(); return len(s.Leases) == 10_000 })
	before, calls := n.tracker.calls.Load(), 0
	for quiet := time.Now(); time.Since(quiet) < 300*time.Millisecond; time.Sleep(time.Millisecond) { // until all watches stand
		if now := n.tracker.calls.Load(); now != before {
			before, quiet = now, time.Now()
		}
	}
	began := time.Now()
	for i := range 50 {
		st.put("subnets/10.5.3.0-24", peer(fmt.Sprintf("192.168.64.%d", i+1)))
		for {
			s, c := n.Last()
			if l := s.Leases[0]; l.V4.Subnet.String() == "10.5.3.0/24" && l.V4.PublicIP == addr(fmt.Sprintf("192.168.64.%d", i+1)) {
				calls = c
				break
			}
			if time.Since(began) > soon {
				t.Fatal("a change has not arrived")
			}
			time.Sleep(100 * time.Microsecond) // short, because the delay is logged
		}
	}
	t.Logf("one change, from put to set: %v (%d calls)", time.Since(began)/50, calls)
	if now := n.tracker.calls.Load(); now > before+20 { // what Hold did meanwhile, and a watch that broke on a busy machine
		t.Errorf("%d requests for 50 changes", now-before)
	}
}

// Much that handle between the list and the watch arrives in fragments, and is put together again.
func TestBacklog(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t)
	n := start(t, srv.Endpoint(), nil)
	n.acquire(at("192.168.255.3"))
	outside(t, srv).fill(10_000)
	n.Run()
	eventually.True(t, "10,000 peers", func() bool { s, _ := n.Last(); return len(s.Leases) == 10_000 })
	s, calls := n.Last()
	if !slices.IsSortedFunc(s.Leases, subnet.Compare) || calls > 20 {
		t.Errorf("sorted: %v; %d calls", slices.IsSortedFunc(s.Leases, subnet.Compare), calls)
	}
	t.Logf("%d calls", calls)
}

func TestConfig(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t)
	st := outside(t, srv)
	n := start(t, srv.Endpoint(), nil)
	var mu sync.Mutex
	var told []string
	go n.WatchConfig(t.Context(), func(raw []byte) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, string(raw))
	})
	has := func(want string) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			return strings.Join(told, " ") == want
		}
	}
	eventually.True(t, "it says that it waits, and for what", func() bool {
		return n.logs.Count("cause="+causeNoConfig, "key="+base+"/config") == 1
	})
	eventually.True(t, "it reports the key", func() bool {
		err := n.ConfigMissing()
		return err != nil && logtest.Names(err.Error(), base+"/config")
	})
	st.put("configuration", "foreign")
	st.put("config", "one")
	eventually.True(t, "first", has("one"))
	if err := n.ConfigMissing(); err != nil {
		t.Error("there is a configuration now: ", err)
	}
	st.put("config", "one")
	st.put("config", "two")
	eventually.True(t, "changed", has("one two"))
	st.remove("config")
	eventually.True(t, "it says that it was deleted", func() bool { return n.logs.Count("cause="+causeConfigGone) == 1 })
	srv.Kill()
	srv.Start()
	st.put("config", "three")
	eventually.True(t, "changed after an outage", has("one two three"))
}

// What changes while etcd is away, or we are cut off, is caught up with, compacted or not; until then the set stands.
func TestOutageAndCompaction(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t)
	st := outside(t, srv)
	for i := range 6 {
		st.put(fmt.Sprintf("subnets/10.5.%d.0-24", i+1), peer(fmt.Sprintf("192.168.64.%d", i+1)))
	}
	proxy := nettest.NewProxy(t, srv.Addr(), 0)
	n := start(t, "http://"+proxy.Addr(), nil)
	n.publish(outOfTheWay("192.168.64.99"), mac1)
	n.Run()
	n.Sees("10.5.1.0-24 10.5.2.0-24 10.5.3.0-24 10.5.4.0-24 10.5.5.0-24 10.5.6.0-24")
	before, calls := n.Last()

	srv.Stop()
	eventually.True(t, "the outage is noticed", func() bool { return n.logs.Count("cause=store-silent") > 0 })
	if _, now := n.Last(); now != calls {
		t.Errorf("%d calls during an outage", now-calls)
	}
	// etcd is back, but not for us: what others do meanwhile is history when we come.
	proxy.BlackHole(true)
	srv.Start()
	st.remove("subnets/10.5.2.0-24")
	st.put("subnets/10.5.4.0-24", strings.Replace(peer("192.168.64.4"), ":44", ":55", 1))
	st.put("subnets/10.5.7.0-24", peer("192.168.64.7"))
	srv.Compact()
	proxy.BlackHole(false)
	n.Sees("10.5.1.0-24 10.5.3.0-24 10.5.4.0-24 10.5.5.0-24 10.5.6.0-24 10.5.7.0-24")
	n.notLost()
	after, _ := n.Last()
	for i, old := range map[int]*subnet.Lease{0: before.Leases[0], 1: before.Leases[2], 3: before.Leases[4]} {
		if after.Leases[i] != old {
			t.Errorf("%s: another pointer after the outage", old.Name)
		}
	}
	if !strings.Contains(string(after.Leases[2].V4.Data), ":55") {
		t.Error("the change was missed")
	}
	st.put("subnets/10.5.8.0-24", peer("192.168.64.8"))
	n.Sees("10.5.1.0-24 10.5.3.0-24 10.5.4.0-24 10.5.5.0-24 10.5.6.0-24 10.5.7.0-24 10.5.8.0-24")
	eventually.True(t, "it says that etcd is back", func() bool {
		return n.logs.Count("cause=store-back") == n.logs.Count("cause=store-silent")
	})
	// A busy server may falter once more while it comes back.
	if n.logs.Count("cause=store-silent") > 2 || n.logs.Count() > 6 {
		t.Errorf("log of one outage:\n%s", n.logs)
	}
}

// Packets vanish without a word, for longer than a keepalive: once they get through again, we are there.
func TestBlackHole(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t)
	st := outside(t, srv)
	st.put("subnets/10.5.1.0-24", peer("192.168.64.1"))
	proxy := nettest.NewProxy(t, srv.Addr(), 0)
	n := start(t, "http://"+proxy.Addr(), nil)
	n.publish(outOfTheWay("192.168.64.99"), mac1)
	n.Run()
	n.Sees("10.5.1.0-24")
	proxy.BlackHole(true)
	st.put("subnets/10.5.2.0-24", peer("192.168.64.2"))
	eventually.True(t, "it is noticed", func() bool { return n.logs.Count("cause=store-silent") > 0 })
	time.Sleep(8 * time.Second) // several more tries
	if n.Peers() != "10.5.1.0-24" {
		t.Errorf("during the black hole: %s", n.Peers())
	}
	if n.logs.Count("cause=store-silent") != 1 {
		t.Errorf("it says so again and again:\n%s", n.logs)
	}
	proxy.BlackHole(false)
	n.Sees("10.5.1.0-24 10.5.2.0-24")
	n.notLost()
}

// A paused etcd still has its kernel accept connections.
func TestPaused(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t)
	st := outside(t, srv)
	n := start(t, srv.Endpoint(), nil)
	n.publish(outOfTheWay("192.168.64.99"), mac1)
	n.Run()
	n.Sees("")
	srv.Pause()
	eventually.True(t, "it is noticed", func() bool { return n.logs.Count("cause=store-silent") > 0 })
	srv.Resume()
	st.put("subnets/10.5.2.0-24", peer("192.168.64.2"))
	n.Sees("10.5.2.0-24")
	n.notLost()
}

// compacting is the consumer of a store whose history is always compacted before the watch behind a list begins.
type compacting struct {
	srv   *etcdtest.Server
	st    store
	lists []time.Time
	end   context.CancelFunc // is called in the fifth list
}

func (c *compacting) handleList(context.Context, *snapshot, bool) {
	if c.lists = append(c.lists, time.Now()); len(c.lists) == 5 {
		c.end()
		return
	}
	for range 2 {
		c.st.put("config", fmt.Sprint("list ", len(c.lists)))
	}
	c.srv.Compact()
}

func (c *compacting) handle(context.Context, []*mvccpb.Event) {
	c.st.t.Error("the watch began")
	c.end()
}

// A watch that can never begin where the list ended lists again with growing pauses, after the first time.
func TestAlwaysCompacted(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t)
	n := start(t, srv.Endpoint(), nil)
	ctx, cancel := context.WithCancel(t.Context())
	c := &compacting{srv: srv, st: outside(t, srv), end: cancel}
	n.follow(ctx, feed{name: "watch a compacted key", key: base + "/config", consumer: c}, nil)
	for i, shortest := 2, 75*time.Millisecond; i < len(c.lists); i, shortest = i+1, 2*shortest {
		if took := c.lists[i].Sub(c.lists[i-1]); took < shortest {
			t.Errorf("list %d comes after %v, want %v at least", i+1, took, shortest)
		}
	}
}

// After an outage, a history that was compacted meanwhile causes no pause: only more of them in a row do.
func TestCompactedDuringOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := session{failures: 9}
		for _, shortest := range []time.Duration{0, 75 * time.Millisecond, 150 * time.Millisecond} {
			began := time.Now()
			if err := s.handleBatch(t.Context(), batch{compacted: true}); !errors.Is(err, errRelist) {
				t.Error(err)
			}
			if took := time.Since(began); took < shortest || took > 2*shortest {
				t.Errorf("a pause of %v, want %v at least", took, shortest)
			}
		}
	})
}

// scripted is an etcd in virtual time. It gives these answers to Get, one after the other, and the last one again and again.
type scripted struct {
	clientv3.KV
	answers []any       // a *clientv3.GetResponse or an error each
	at      []time.Time // when it was asked
}

func (s *scripted) Get(context.Context, string, ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	answer := s.answers[min(len(s.at), len(s.answers)-1)]
	s.at = append(s.at, time.Now())
	if err, failed := answer.(error); failed {
		return nil, err
	}
	return answer.(*clientv3.GetResponse), nil
}

// has is the answer of a store at this revision with one lease, which was written at mod.
func has(rev, mod int64) *clientv3.GetResponse {
	return &clientv3.GetResponse{Header: &pb.ResponseHeader{Revision: rev}, Kvs: []*mvccpb.KeyValue{{Key: []byte(base + "/subnets/10.5.1.0-24"), ModRevision: mod}}}
}

// afterBrokenWatch returns the session of a feed of so many keys, whose watch has just failed at revision 7.
func afterBrokenWatch(kv *scripted, keys int) (*session, *logtest.Log) {
	logs := &logtest.Log{}
	m := &Manager{connection: connection{client: &clientv3.Client{KV: kv}}, outage: subnet.NewOutage(logs.Logger(), "etcd")}
	s := &session{m: m, feed: feed{name: "watch", key: base + "/subnets/", end: base + "/subnets0"}, keys: keys,
		at: position{rev: 7, witness: base + "/subnets/10.5.1.0-24", mod: 7}}
	m.outage.Failed(s.feed.name, errors.New("the watch has ended"))
	return s, logs
}

// A list that is not the first is spread over a time that grows with the number of keys: many nodes may lose their
// positions together. etcd answers, so the pause is no outage.
func TestListsAreSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			keys    int
			longest time.Duration
		}{{0, 0}, {10, 40 * time.Millisecond}, {5000, 20 * time.Second}, {50_000, 30 * time.Second}} {
			least, most := time.Hour, time.Duration(0)
			for range 100 {
				kv := &scripted{answers: []any{rpctypes.ErrCompacted, has(9, 7), errors.New("refused")}}
				s, logs := afterBrokenWatch(kv, c.keys)
				began := time.Now()
				if err := s.run(t.Context()); !errors.Is(err, errRelist) {
					t.Fatal(err)
				}
				if c.keys == 0 { // there is no pause
					kv.answers = kv.answers[1:]
				}
				if s.run(t.Context()) == nil {
					t.Fatal("there is a list")
				}
				took := kv.at[len(kv.at)-1].Sub(began)
				least, most = min(least, took), max(most, took)
				if logs.Count() > 0 {
					t.Fatalf("%d keys: in %v, it logs\n%s", c.keys, took, logs)
				}
				s.m.outage.Forget(s.feed.name)
			}
			if most > c.longest || most < c.longest/2 || least > c.longest/2 {
				t.Errorf("%d keys: listed after %v to %v, want up to %v", c.keys, least, most, c.longest)
			}
		}
	})
}

// A list does not wait for its turn while etcd does not answer.
func TestNoTurnDuringOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kv := &scripted{answers: []any{errors.New("away")}}
		s, logs := afterBrokenWatch(kv, 5000)
		s.at.stale = true
		began := time.Now()
		if err := s.run(t.Context()); err == nil || time.Since(began) > 0 || len(kv.at) != 1 {
			t.Errorf("%v after %v and %d requests", err, time.Since(began), len(kv.at))
		}
		time.Sleep(5 * time.Second)
		if logs.Count("cause=store-silent") != 1 {
			t.Errorf("it logs\n%s", logs)
		}
	})
}

// While only lists fail, the outage neither ends nor is logged again before each of them.
func TestOnlyListsFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kv := &scripted{answers: []any{errors.New("away"), has(9, 7), errors.New("list"), has(9, 7), errors.New("list")}}
		s, logs := afterBrokenWatch(kv, 5000)
		s.at.stale = true
		for range kv.answers[:3] {
			s.m.outage.Failed(s.feed.name, s.run(t.Context()))
			time.Sleep(2 * time.Second) // follow's pause
		}
		if len(kv.at) != 5 || logs.Count() != 1 {
			t.Errorf("after %d requests, it has logged\n%s", len(kv.at), logs)
		}
	})
}

// listed is a consumer that keeps whether the store was replaced before the list.
type listed struct{ replaced bool }

func (l *listed) handleList(_ context.Context, _ *snapshot, replaced bool) { l.replaced = replaced }

func (l *listed) handle(context.Context, []*mvccpb.Event) {}

// A store that was restored with --bump-revision is an older one, also if the node of the witness writes it again before the
// list has its turn.
func TestWitnessWrittenBeforeList(t *testing.T) {
	for first, want := range map[*clientv3.GetResponse]bool{has(9, 5): true, has(9, 7): false, has(9, 8): false, has(6, 7): true} {
		s, _ := afterBrokenWatch(&scripted{answers: []any{first, has(10, 10)}}, 5)
		l := &listed{}
		s.feed.consumer = l
		if err := errors.Join(s.awaitTurn(t.Context()), s.list(t.Context())); err != nil {
			t.Fatal(err)
		}
		if l.replaced != want {
			t.Errorf("the witness of revision 7 was at %d of %d: replaced %t, want %t", first.Kvs[0].ModRevision, first.Header.Revision, l.replaced, want)
		}
	}
}
