package kube

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"flannel/internal/test/eventually"
	"flannel/internal/test/kubetest"
	"flannel/internal/test/logtest"
	"flannel/subnet"
)

// isLookup reports whether a request is for the podCIDRs of new Nodes.
func isLookup(r *http.Request) bool {
	single := strings.HasPrefix(r.URL.Path, "/api/v1/nodes/")
	return r.Method == http.MethodGet && (single || r.URL.Query().Get("labelSelector") != "")
}

// held makes a manager's lookups wait until the returned function is called.
func held(t *testing.T, s *kubetest.Server, name string) (n *member, release func()) {
	t.Helper()
	open := make(chan struct{})
	var opened bool
	release = func() {
		if !opened {
			opened = true
			close(open)
		}
	}
	t.Cleanup(release)
	n = startWith(t, s, name, func(op *Options) { op.SetCondition = false }, func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		if isLookup(r) {
			select {
			case <-open:
			case <-r.Context().Done():
				return nil, r.Context().Err()
			}
		}
		return next.RoundTrip(r)
	})
	return n, release
}

// New Nodes are read from the API server's memory, many by one request, and whoever is known does not wait for it.
func TestNewNodes(t *testing.T) {
	t.Parallel()
	s := kubetest.Start(t)
	o := outside{t, s}
	o.add("new-0", "10.244.0.0/24")
	o.peer("new-a", "10.244.1.0/24", "192.168.1.1")
	n, release := held(t, s, "new-0")
	n.join(tenNet, "192.168.0.1", mac1)
	n.Run()
	n.Sees("new-a")
	etcdReads := func() float64 {
		t.Helper()
		m, err := s.Metrics(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return m.EtcdReads()
	}
	before, requests := etcdReads(), n.traffic.count("GET /api/v1/nodes")
	const count = 40
	var all []string
	for i := range count {
		name := fmt.Sprintf("new-b%02d", i)
		all = append(all, name)
		hostname := name
		if i%10 == 9 {
			hostname = "" // found by its name alone
		}
		o.labelled(name, hostname, fmt.Sprintf("10.244.%d.0/24", 10+i), fmt.Sprintf("192.168.2.%d", i))
	}
	o.annotate("new-a", "backend-data", mac2)
	eventually.True(t, "a known peer's change", func() bool {
		set, _ := n.Last()
		return len(set.Leases) == 1 && string(set.Leases[0].V4.Data) == mac2
	})
	release()
	n.Sees("new-a " + strings.Join(all, " "))
	if reads := etcdReads() - before; reads > 2 { // the server may have reasons of its own for one
		t.Errorf("%v reads of etcd for %d new nodes", reads, count)
	}
	made := n.traffic.matching("GET /api/v1/nodes")[requests:]
	if len(made) > count*3/4 { // 14 as a rule; what waits for more than 15 seconds is asked for again
		t.Errorf("%d requests for %d new nodes:\n%s", len(made), count, strings.Join(made, "\n"))
	}
}

// labelled makes a peer as a kubelet and its flanneld do.
func (o outside) labelled(name, hostname, cidr, ip string) {
	o.t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{
		prefix + "kube-subnet-manager": "true", prefix + "backend-type": "vxlan", prefix + "backend-data": mac1, prefix + "public-ip": ip}}}
	if hostname != "" {
		n.Labels = map[string]string{corev1.LabelHostname: hostname}
	}
	n.Spec.PodCIDR, n.Spec.PodCIDRs = cidr, []string{cidr}
	if _, err := o.Client.CoreV1().Nodes().Create(context.Background(), n, metav1.CreateOptions{}); err != nil {
		o.t.Fatalf("create node: %v", err)
	}
}

// lookedUpInOrder: a Node that is deleted and made anew while it is read is the new one in the end.
func lookedUpInOrder(t *testing.T, o outside) {
	o.add("order-0", "10.244.80.0/24")
	n, release := held(t, o.Server, "order-0")
	n.join(tenNet, "192.168.0.80", mac1)
	n.Run()
	n.Sees("")
	o.labelled("order-1", "order-1", "10.244.81.0/24", "192.168.0.81")
	eventually.True(t, "it is being read", func() bool { return n.traffic.count("/api/v1/nodes/order-1?resourceVersion=") > 0 })
	o.remove("order-1")
	o.labelled("order-1", "order-2", "10.244.82.0/24", "192.168.0.81")
	o.labelled("order-2", "order-1", "10.244.83.0/24", "192.168.0.83")
	o.labelled("order-3", "order-3", "10.244.84.0/24", "192.168.0.84")
	o.remove("order-3")
	release()
	n.Sees("order-1 order-2")
	set, _ := n.Last()
	for _, l := range set.Leases {
		if l.Name == "order-1" && l.V4.Subnet.String() != "10.244.82.0/24" {
			t.Errorf("order-1 has %v", l.V4.Subnet)
		}
	}
}

// byLabel: many are found by one list, whatever their labels say.
func byLabel(t *testing.T, o outside) {
	o.add("label-0", "10.244.95.0/24")
	n := start(t, o.Server, "label-0", nil)
	wanted := map[string]*storedNode{"label-gone": {Name: "label-gone", Hostname: "label-gone"}}
	for i := range 20 {
		name := fmt.Sprintf("label-%d", 1+i)
		hostname := name
		switch i {
		case 0:
			hostname = ""
		case 1, 2, 3:
			hostname = "label-1"
		}
		o.labelled(name, hostname, fmt.Sprintf("10.244.96.%d/28", 16*(i%16)), "192.168.0.95")
		wanted[name] = &storedNode{Name: name, Hostname: hostname}
	}
	o.labelled("label-other", "label-5", "10.244.97.0/24", "192.168.0.95")
	wanted["label-7"].Hostname = "was-another" // it was relabelled
	got, err := n.api.NodesByName(t.Context(), wanted, o.node("label-other").ResourceVersion)
	if err != nil || len(got) != 20 {
		t.Errorf("%d nodes: %v", len(got), err)
	}
	for name, is := range got {
		if is.Name != name || !is.HasSpec || len(is.CIDRs) != 1 {
			t.Errorf("%s is %+v", name, is)
		}
	}
	if lists, gets := n.traffic.count("labelSelector"), n.traffic.count("GET /api/v1/nodes/"); lists != 1 || gets != 3 {
		t.Errorf("%d lists and %d single reads:\n%s", lists, gets, strings.Join(n.traffic.matching("GET"), "\n"))
	}
}

// An event ends an outage of which only lookups know. So a later outage is logged, although the watch went on and nothing
// else asked the API server between the two.
func TestEventEndsOutage(t *testing.T) {
	t.Parallel()
	s := kubetest.Start(t)
	o := outside{t, s}
	o.add("event-0", "10.244.85.0/24")
	n := startWith(t, s, "event-0", func(op *Options) { op.SetCondition = false }, func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		if isLookup(r) {
			return nil, context.DeadlineExceeded
		}
		return next.RoundTrip(r)
	})
	n.join(tenNet, "192.168.0.85", mac1)
	n.Run()
	n.Sees("")
	silent := func(outages int) func() bool {
		return func() bool { return n.logs.Count("cause=store-silent") == outages }
	}
	o.labelled("event-1", "event-1", "10.244.86.0/24", "192.168.0.86")
	eventually.True(t, "the outage of the lookups is logged", silent(1))
	o.remove("event-1")
	eventually.True(t, "the outage is over", func() bool { return n.outage.Err() == nil })
	s.Kill()
	eventually.True(t, "the outage of all is logged", silent(2))
}

// "Too many requests" ends an outage, but not a denial: the API server may answer so before it looks at permissions.
func TestBusyServerAllowsNothing(t *testing.T) {
	m := offline(t, false, nil)
	s := &follower{m: m, feed: feed{activity: "test"}}
	busy := apierrors.NewTooManyRequests("later", 1)
	s.recordLookupResult(context.DeadlineExceeded)
	if s.recordLookupResult(busy); m.outage.Err() != nil {
		t.Errorf("a server that is busy answers, but %v", m.outage.Err())
	}
	s.recordLookupResult(apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "", nil))
	if s.recordLookupResult(busy); !apierrors.IsForbidden(m.outage.Err()) {
		t.Errorf("the denial became %v", m.outage.Err())
	}
	if s.recordLookupResult(nil); m.outage.Err() != nil {
		t.Errorf("allowed, but %v", m.outage.Err())
	}
}

// An API server that is too busy for other requests than lookups is an outage, but not silent.
func TestBusyServerIsNotSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logtest.Log
		m := offline(t, false, nil)
		m.outage = subnet.NewOutage(log.Logger(), "the Kubernetes API")
		m.recordFailure("test", apierrors.NewTooManyRequests("later", 1))
		time.Sleep(time.Minute)
		synctest.Wait()
		if log.Count("cause=store-busy") != 1 || log.Count() != 1 || time.Since(m.outage.Since()) != time.Minute {
			t.Errorf("an outage since %v:\n%s", m.outage.Since(), &log)
		}
		if err := m.outage.Err(); !apierrors.IsTooManyRequests(err) {
			t.Errorf("the API server's answer became %v", err)
		}
	})
}

// withoutPodCIDR: a peer without one is not read with each of its events, and is found when it gets one.
func withoutPodCIDR(t *testing.T, o outside) {
	o.add("without-0", "10.244.90.0/24")
	n := start(t, o.Server, "without-0", nil)
	n.join(tenNet, "192.168.0.90", mac1)
	n.Run()
	n.Sees("")
	o.peer("without-1", "", "192.168.0.91")
	n.Sees("[without-1]")
	o.peer("without-2", "10.244.92.0/24", "192.168.0.92")
	const beats = 40
	for i := range beats {
		o.heartbeat("without-1", i)
	}
	o.annotate("without-2", "backend-data", mac2) // comes after all of them
	eventually.True(t, "all are seen", func() bool {
		set, _ := n.Last()
		for _, l := range set.Leases {
			if l.Name == "without-2" && string(l.V4.Data) == mac2 {
				return true
			}
		}
		return false
	})
	if reads := n.traffic.count("/api/v1/nodes/without-1"); reads > beats/4 {
		t.Errorf("read %d times, with %d events", reads, beats)
	}
	o.assign("without-1", "10.244.91.0/24")
	n.Sees("without-1 without-2")
}

// The pauses, which no test can wait for.
func TestLookupsArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ls := newLookups()
		reads, version := 0, 0
		began := time.Now()
		for time.Since(began) < 10*time.Minute {
			version++
			ls.request(&storedNode{Name: "a", UID: "1", Version: fmt.Sprint(version)}, 0, false)
			l := ls.byName["a"]
			if !l.due.After(time.Now()) {
				reads++
				l.recordEmpty(fmt.Sprint(version))
			}
			time.Sleep(100 * time.Millisecond)
		}
		if reads < 15 || reads > 35 {
			t.Errorf("read %d times in ten minutes with an event every 0.1 s", reads)
		}
	})
}

// What is new at the same time is read at the same time, and then nothing new for a while.
func TestLookupsComeTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := offline(t, false, func(*http.Request) (int, []byte) {
			return http.StatusOK, kubetest.Encode(t, &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}, "NodeList")
		})
		s := &follower{m: m, feed: feed{activity: "test"}, known: map[string]known{}, lookups: newLookups()}
		for i := range 5000 {
			s.known[fmt.Sprint(i)] = known{}
		}
		batches, began := 0, time.Now()
		for i := 0; time.Since(began) < time.Minute; i++ { // ten new Nodes a second
			if due := s.lookups.freshDue; len(s.lookups.byName) > 0 && !due.After(time.Now()) {
				batches++
				for name, l := range s.lookups.byName {
					if l.due != due {
						t.Fatalf("%s is due at %v, others at %v", name, l.due, due)
					}
				}
				s.startLookup(t.Context())
				if err := s.handleAnswer(t.Context(), <-s.lookups.answers); err != nil {
					t.Fatal(err)
				}
				s.lookups.byName = map[string]*lookup{}
			}
			name := fmt.Sprint("new-", i)
			s.lookups.request(&storedNode{Name: name, UID: name, Version: "1"}, s.spread(), false)
			time.Sleep(100 * time.Millisecond)
		}
		if batches < 12 || batches > 60 {
			t.Errorf("%d batches in a minute", batches)
		}
		s.lookups.request(&storedNode{Name: "gone", UID: "gone", Version: "1"}, s.spread(), false)
		delete(s.lookups.byName, "gone")
		time.Sleep(time.Minute)
		s.lookups.request(&storedNode{Name: "next", UID: "next", Version: "1"}, s.spread(), false)
		if due := s.lookups.byName["next"].due; !due.After(time.Now()) {
			t.Errorf("after one that went unread, the next is due at %v", due)
		}
	})
}

// The Nodes of a request that fails are read together again, and at the pace of new ones.
func TestFailedLookupsStayTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var requests atomic.Int32
		m := offline(t, false, func(*http.Request) (int, []byte) {
			requests.Add(1)
			return http.StatusTooManyRequests, kubetest.Encode(t, tooManyRequests(), "Status")
		})
		s := &follower{m: m, feed: feed{activity: "test"}, known: map[string]known{}, lookups: newLookups()}
		for i := range 5000 {
			s.known[fmt.Sprint(i)] = known{}
		}
		for i := range 300 {
			name := fmt.Sprint("new-", i)
			s.lookups.request(&storedNode{Name: name, Hostname: name, UID: name, Version: "1"}, s.spread(), false)
		}
		for over := time.After(time.Minute); ; {
			select {
			case <-s.lookups.whenDue(s.spread()):
				s.startLookup(t.Context())
				continue
			case a := <-s.lookups.answers:
				if err := s.handleAnswer(t.Context(), a); err != nil {
					t.Fatal(err)
				}
				due := s.lookups.byName["new-0"].due
				for name, l := range s.lookups.byName {
					if l.due != due || due.Before(s.lookups.freshFrom) {
						t.Fatalf("%s is due at %v, another at %v, new ones from %v", name, l.due, due, s.lookups.freshFrom)
					}
				}
				continue
			case <-over:
			}
			break
		}
		if n := requests.Load(); n < 5 || n > 40 {
			t.Errorf("%d requests in a minute", n)
		}
	})
}

// While requests fail, Nodes that appear later are read together with those before.
func TestFailedLookupsMerge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var requests atomic.Int32
		m := offline(t, false, func(*http.Request) (int, []byte) {
			requests.Add(1)
			return http.StatusTooManyRequests, kubetest.Encode(t, tooManyRequests(), "Status")
		})
		s := &follower{m: m, feed: feed{activity: "test"}, known: map[string]known{}, lookups: newLookups()}
		for i := range 5000 {
			s.known[fmt.Sprint(i)] = known{}
		}
		added, appear, over := 0, time.Tick(2*time.Second), time.After(10*time.Minute)
		for running := true; running; {
			select {
			case <-appear:
				for range 10 {
					name := fmt.Sprint("new-", added)
					s.lookups.request(&storedNode{Name: name, Hostname: name, UID: name, Version: "1"}, s.spread(), false)
					added++
				}
			case <-s.lookups.whenDue(s.spread()):
				s.startLookup(t.Context())
			case a := <-s.lookups.answers:
				if err := s.handleAnswer(t.Context(), a); err != nil {
					t.Fatal(err)
				}
			case <-over:
				running = false
			}
		}
		if n := requests.Load(); n < 60 || n > 400 { // one in 2.5 s, on average
			t.Errorf("%d requests in ten minutes", n)
		}
	})
}

// tooManyRequests is the answer of an API server that is too busy.
func tooManyRequests() *metav1.Status {
	s := apierrors.NewTooManyRequests("later", 1).Status()
	return &s
}

func TestSpread(t *testing.T) {
	for nodes, want := range map[int]time.Duration{0: 0, 200: 0, 1000: 200 * time.Millisecond, 5000: time.Second, 100_000: spreadMax} {
		s := follower{known: make(map[string]known, nodes)}
		for i := range nodes {
			s.known[fmt.Sprint(i)] = known{}
		}
		if got := s.spread(); got != want {
			t.Errorf("spread over %v among %d", got, nodes)
		}
	}
}
