package etcd

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"flannel/internal/test/etcdtest"
	"flannel/subnet"
)

// observedEndpoint makes this program a manager in a process of its own, whose memory is nobody else's.
const observedEndpoint = "FLANNEL_TEST_OBSERVED_ENDPOINT"

// observed is what that process prints, a line for each set.
type observed struct {
	Leases  []string // the last digits of public addresses
	Rejects int
	Reject  string // the name of the first one
	Heap    uint64 // the most that the heap has had, in bytes
}

func runObserved(endpoint string) {
	must := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	m, err := New(context.Background(), Options{Endpoints: []string{endpoint}})
	must(err)
	_, err = m.Acquire(context.Background(), tenNet, outOfTheWay("192.168.65.99"))
	must(err)
	go func() { must(m.Hold(context.Background())) }()
	must(m.Watch(context.Background(), func(s subnet.Set) {
		var o observed
		for _, l := range s.Leases {
			o.Leases = append(o.Leases, l.V4.PublicIP.String())
		}
		if o.Rejects = len(s.Rejects); o.Rejects > 0 {
			o.Reject = s.Rejects[0].Name
		}
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		o.Heap = stats.HeapSys
		must(json.NewEncoder(os.Stdout).Encode(o))
	}))
	os.Exit(0)
}

// observe starts that process and returns what waits for a set of it.
func observe(t *testing.T, endpoint string) (until func(what string, ok func(observed) bool) observed) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), observedEndpoint+"="+endpoint)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	lines := make(chan observed, 100_000)
	go func() {
		defer close(lines)
		for in := json.NewDecoder(bufio.NewReader(out)); ; {
			var o observed
			if in.Decode(&o) != nil {
				return
			}
			lines <- o
		}
	}()
	return func(what string, ok func(observed) bool) observed {
		t.Helper()
		var last observed
		for deadline := time.After(3 * time.Minute); ; {
			select {
			case o, open := <-lines:
				if !open {
					t.Fatalf("%s: the process has ended; its last set: %+v", what, last)
				}
				if last = o; ok(o) {
					t.Logf("%s: %d leases, %d rejects, heap %d MB", what, len(o.Leases), o.Rejects, o.Heap>>20)
					return o
				}
			case <-deadline:
				t.Fatalf("%s: not yet; its last set: %+v", what, last)
			}
		}
	}
}

// mostHeap is far below a container's usual limit of 256 MB, and far below what the store holds in these tests.
const mostHeap = 128 << 20

// 400 MB of values by a rogue writer, at the start and later: the heap stays small, good peers are seen, each rogue key is named.
func TestHugeValues(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t)
	st := outside(t, srv)
	huge := strings.Repeat("x", 1<<20)
	for i := range 200 {
		st.put(fmt.Sprintf("subnets/10.5.%d.0-24", i%100+10), peer(fmt.Sprintf("192.168.64.%d", i%100+1))) // among them
		st.put(fmt.Sprintf("subnets/10.5.%d.0-24-%d", i%100+10, i), huge)
	}
	until := observe(t, srv.Endpoint())
	o := until("first set", func(o observed) bool { return len(o.Leases) == 100 && o.Rejects == 200 })
	if o.Heap > mostHeap {
		t.Errorf("the list took %d MB", o.Heap>>20)
	}
	// With a name that can be a lease's, too, and a value that begins like one.
	like := strings.TrimSuffix(peer("192.168.64.7"), "}") + `,"X":"` + huge + `"}`
	for i := range 200 {
		st.put(fmt.Sprintf("subnets/10.5.%d.%d-30", i/50+120, i%50*4), like)
	}
	st.put("subnets/10.5.240.0-24", peer("192.168.64.240"))
	o = until("a peer that came later", func(o observed) bool { return slices.Contains(o.Leases, "192.168.64.240") })
	if o.Heap > mostHeap || o.Rejects != 400 || len(o.Leases) != 101 {
		t.Errorf("the watch took %d MB; %d rejects, %d leases", o.Heap>>20, o.Rejects, len(o.Leases))
	}
	_, err := st.Delete(t.Context(), base+"/subnets/10.5.1", clientv3.WithPrefix())
	must(t, err)
	until("deleted", func(o observed) bool { return !slices.Contains(o.Leases, "192.168.64.5") })
}

// 30,000 keys that hold no lease: a thousand are named, and good peers come and go as before.
func TestManyJunkKeys(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t)
	st := outside(t, srv)
	const junk = 30_000
	for i := 0; i < junk; i += 100 {
		var ops []clientv3.Op
		for k := range 100 { // a transaction has 128 steps at most
			ops = append(ops, clientv3.OpPut(fmt.Sprintf("%s/subnets/junk%05d-%s", base, i+k, strings.Repeat("junk", 50)), strings.Repeat("x", 500)))
		}
		_, err := st.Txn(t.Context()).Then(ops...).Commit()
		must(t, err)
	}
	st.put("subnets/10.5.20.0-24", peer("192.168.64.20"))
	until := observe(t, srv.Endpoint())
	o := until("first set", func(o observed) bool { return len(o.Leases) == 1 })
	if o.Heap > mostHeap || o.Rejects != maxRejects+1 || o.Reject != base+"/subnets*" {
		t.Errorf("%d MB; %d rejects, the first one %s", o.Heap>>20, o.Rejects, o.Reject)
	}
	st.put("subnets/10.5.30.0-24", peer("192.168.64.30"))
	until("a peer that came later", func(o observed) bool { return len(o.Leases) == 2 })
	for i := range 10 { // 3,000 events each
		_, err := st.Delete(t.Context(), fmt.Sprintf("%s/subnets/junk%d", base, i), clientv3.WithPrefix())
		must(t, err)
	}
	st.put("subnets/10.5.20.0-24", peer("192.168.64.20"))
	st.put("subnets/10.5.30.0-24", peer("192.168.64.30"))
	if o = until("cleaned up", func(o observed) bool { return o.Rejects == 0 && len(o.Leases) == 2 }); o.Heap > mostHeap {
		t.Errorf("%d MB", o.Heap>>20)
	}
}

// A server whose request limit was raised can hold a single value above our limit of a message: it is not transferred,
// and costs nobody else anything, neither in the list nor in the watch.
func TestValueAboveTheMessageLimit(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Flags("--max-request-bytes=16000000"))
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{srv.Endpoint()}, Logger: zap.NewNop(), MaxCallSendMsgSize: 20_000_000})
	must(t, err)
	t.Cleanup(func() { c.Close() })
	st := store{c, t}
	value := strings.Repeat("x", 2*maxMessage)
	st.put("subnets/10.5.2.0-24", peer("192.168.64.2"))
	st.put("subnets/10.5.3.0-24", value)
	st.put("subnets/10.5.4.0-24", peer("192.168.64.4"))
	n := start(t, srv.Endpoint(), nil)
	n.publish(outOfTheWay("192.168.64.99"), mac1)
	n.Run()
	n.Sees("10.5.2.0-24 10.5.4.0-24 [10.5.3.0-24]")
	st.put("subnets/10.5.5.0-24", value)
	st.put("subnets/10.5.6.0-24", peer("192.168.64.6"))
	n.Sees("10.5.2.0-24 10.5.4.0-24 10.5.6.0-24 [10.5.3.0-24] [10.5.5.0-24]")
	st.remove("subnets/10.5.3.0-24")
	n.Sees("10.5.2.0-24 10.5.4.0-24 10.5.6.0-24 [10.5.5.0-24]")
	n.notLost()
}

// History that is compacted between two pages makes a new list.
func TestCompactedBetweenPages(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t)
	st := outside(t, srv)
	st.fill(1000)
	n := start(t, srv.Endpoint(), nil)
	l := listing{m: n.Manager, feed: n.leases(""), perPage: time.Minute, next: n.subnets, limit: 300}
	resp, err := l.page(t.Context())
	must(t, err)
	more, err := l.take(resp)
	must(t, err)
	st.put("config", "a change")
	srv.Compact()
	if err := l.readAll(t.Context()); !more || err == nil {
		t.Fatalf("more %t, then %v", more, err)
	}
	snap, err := n.list(t.Context(), n.leases(""), time.Minute)
	must(t, err)
	if len(snap.kvs) != 1000 {
		t.Errorf("%d keys", len(snap.kvs))
	}
}

// A batch ends between revisions, wherever the server cuts its responses.
func TestFragments(t *testing.T) {
	big := strings.Repeat("x", maxBatchBytes/3)
	event := func(rev int64) *mvccpb.Event {
		return &mvccpb.Event{Kv: &mvccpb.KeyValue{Key: []byte("k"), Value: []byte(big), ModRevision: rev}}
	}
	in := make(chan received, 10)
	for _, f := range []struct {
		revs []int64
		more bool
	}{{[]int64{1, 2}, true}, {[]int64{2, 3}, true}, {[]int64{3, 4}, true}, {[]int64{4}, false}} {
		resp := &pb.WatchResponse{Fragment: f.more}
		for _, rev := range f.revs {
			resp.Events = append(resp.Events, event(rev))
		}
		in <- received{resp: resp}
	}
	var got []int64
	var carry []*mvccpb.Event
	for len(in) > 0 {
		b := gather(t.Context(), carry, <-in, in)
		carry = b.carry
		if len(got) > 0 && len(b.events) > 0 && b.events[0].Kv.ModRevision == got[len(got)-1] {
			t.Errorf("revision %d was handed over in two parts", got[len(got)-1])
		}
		for _, e := range b.events {
			got = append(got, e.Kv.ModRevision)
		}
	}
	if want := []int64{1, 2, 2, 3, 3, 4, 4}; !slices.Equal(got, want) || len(carry) != 0 {
		t.Errorf("%v, want %v; left %d", got, want, len(carry))
	}
	// A stream that breaks within a revision.
	in <- received{resp: &pb.WatchResponse{Fragment: true, Events: []*mvccpb.Event{event(5), event(6)}}}
	in <- received{err: context.Canceled}
	if b := gather(t.Context(), nil, <-in, in); len(b.events) != 1 || b.err == nil {
		t.Errorf("%d events, error %v", len(b.events), b.err)
	}
}
