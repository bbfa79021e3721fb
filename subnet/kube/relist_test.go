package kube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flannel/internal/test/eventually"
	"flannel/internal/test/kubetest"
)

// expiring is the body of a watch that tells something and then that the position is lost.
type expiring struct {
	frames [][]byte
	rest   bytes.Reader
}

func (e *expiring) Read(p []byte) (int, error) {
	if e.rest.Len() == 0 {
		if len(e.frames) == 0 {
			return 0, io.EOF
		}
		if len(e.frames) == 1 {
			time.Sleep(50 * time.Millisecond) // else it would come in one batch with what is before it
		}
		e.rest.Reset(e.frames[0])
		e.frames = e.frames[1:]
	}
	return e.rest.Read(p)
}

func (*expiring) Close() error { return nil }

// An API server that loses the position again and again is asked ever more rarely, for metadata alone, out of its
// memory, and for nothing that is older than what we have.
func TestRelists(t *testing.T) {
	t.Parallel()
	s := kubetest.Start(t)
	o := outside{t, s}
	o.add("relist-0", "10.244.0.0/24")
	o.peer("relist-1", "10.244.1.0/24", "192.168.1.1")
	expired := func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		q := r.URL.Query()
		if q.Get("watch") == "" || q.Get("fieldSelector") != "" {
			return next.RoundTrip(r)
		}
		at := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{ResourceVersion: q.Get("resourceVersion")}}
		return &http.Response{StatusCode: http.StatusOK, Request: r, Header: http.Header{"Content-Type": {protobuf}}, Body: &expiring{frames: [][]byte{
			kubetest.Frame(t, "BOOKMARK", kubetest.Encode(t, at, "PartialObjectMetadata")),
			kubetest.Frame(t, "ERROR", kubetest.Encode(t, &metav1.Status{Code: http.StatusGone, Reason: metav1.StatusReasonExpired}, "Status")),
		}}}, nil
	}
	n := startWith(t, s, "relist-0", func(op *Options) { op.SetCondition = false }, expired)
	n.join(tenNet, "192.168.0.1", mac1)
	lists := func() (all []string) {
		for _, r := range n.traffic.matching("GET /api/v1/nodes?") {
			if !strings.Contains(r, "fieldSelector") && !strings.Contains(r, "watch=") && !strings.Contains(r, "limit") && !strings.Contains(r, "labelSelector") {
				all = append(all, r)
			}
		}
		return all
	}
	began := time.Now() // of the first list, however late the test looks at the others
	n.Run()
	n.Sees("relist-1")
	o.peer("relist-2", "10.244.2.0/24", "192.168.1.2")
	n.Sees("relist-1 relist-2")
	o.remove("relist-1")
	n.Sees("relist-2")
	eventually.True(t, "many lists", func() bool { return len(lists()) >= 8 })
	if took := time.Since(began); took < 2*time.Second {
		t.Errorf("8 lists within %v: %v", took, lists())
	}
	for _, l := range lists()[1:] {
		if strings.HasSuffix(l, "resourceVersion=") || strings.HasSuffix(l, "resourceVersion=0") {
			t.Errorf("a list from etcd, or as old as it likes: %s", l)
		}
	}
}

func TestRelistsArePaced(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	for _, c := range []struct {
		nodes int
		most  []time.Duration
	}{
		{1, []time.Duration{100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000, 30000}},
		{1000, []time.Duration{4000, 8000, 16000, 30000, 30000}},
		{5000, []time.Duration{20000, 30000, 30000}},
		{100_000, []time.Duration{30000, 30000}},
	} {
		var r relists
		for i, most := range c.most {
			most *= time.Millisecond
			d := r.next(now, c.nodes)
			if d > most || d < most/4 {
				t.Errorf("%d nodes, list %d: %v, want up to %v", c.nodes, i, d, most)
			}
			now = now.Add(d)
		}
		now = now.Add(relistOver + time.Second)
		if d := r.next(now, 1); d > relistMin {
			t.Errorf("long after: %v", d)
		}
	}
	nodes := map[string]known{}
	for i := range 100 {
		nodes[fmt.Sprint(i)] = known{}
	}
	for rewound, most := range map[bool]time.Duration{false: 400 * time.Millisecond, true: 3200 * time.Millisecond} {
		s := follower{known: nodes, rewound: rewound}
		if d := s.relistPause(); d > most || d < most/4 {
			t.Errorf("rewound %v: %v, want up to %v", rewound, d, most)
		}
	}
}

// What the server has in memory may be of a store that was replaced: then the list comes from there, however old.
func TestListNotOlderThanTheStore(t *testing.T) {
	list := &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: "70"}, Items: []corev1.Node{*kubetest.Sample(0)}}
	var asked []string
	n := offline(t, false, func(r *http.Request) (int, []byte) {
		asked = append(asked, fmt.Sprintf("%s %s", r.URL.Query().Get("limit"), r.URL.Query().Get("resourceVersion")))
		if r.URL.Query().Get("resourceVersion") == "100" {
			return http.StatusGatewayTimeout, kubetest.Encode(t, &metav1.Status{Status: "Failure", Code: http.StatusGatewayTimeout, Reason: metav1.StatusReasonTimeout,
				Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}}}}, "Status")
		}
		return http.StatusOK, kubetest.Encode(t, list, "NodeList")
	})
	var told []change
	s := &follower{m: n, feed: feed{activity: "test", handle: toSlice(&told)}, lookups: newLookups(), reached: "100", floor: "100",
		known: map[string]known{"node0": {uid: "u-1"}, "gone": {uid: "u-2"}}}
	err := s.list(t.Context())
	if !isVersionTooLarge(err) {
		t.Fatalf("a server that lags: %v", err)
	}
	if err = s.check(t.Context()); err == nil {
		t.Fatal("the older store was not noticed")
	}
	if err = s.list(t.Context()); err != nil || s.version != "70" || len(told) != 2 || !told[0].replaced || !told[1].replaced {
		t.Errorf("%v, at %s: %+v", err, s.version, told)
	}
	if got := strings.Join(asked, ", "); got != " 100, 1 ,  70" {
		t.Errorf("asked for %s", got)
	}
}

// A store that was restored ahead of the former one is recognized by any Node that is older in it than before. The next
// list is not older than the restored store, and has whole Nodes.
func TestListHasOlderNode(t *testing.T) {
	list := &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: "1000"},
		Items: []corev1.Node{*kubetest.Sample(0), *kubetest.Sample(1)}}
	var asked []string
	m := offline(t, false, func(r *http.Request) (int, []byte) {
		whole := r.Header.Get("Accept") != metadataList
		asked = append(asked, fmt.Sprintf("%s whole=%v", r.URL.Query().Get("resourceVersion"), whole))
		return http.StatusOK, kubetest.Encode(t, list, "NodeList")
	})
	for _, c := range []struct {
		known known // of node1, which has version 101 in the list
		older bool
	}{
		{known{uid: "u-1", version: "101"}, false},
		{known{uid: "u-1", version: "102"}, true},
		{known{uid: "u-0", version: "102"}, false}, // it was recreated
	} {
		var told []change
		asked = nil
		s := &follower{m: m, feed: feed{activity: "test", handle: toSlice(&told)}, lookups: newLookups(),
			reached: "110", floor: "110", known: map[string]known{"node0": {uid: "u-1", version: "100"}, "node1": c.known, "gone": {uid: "u-2"}}}
		err, want := s.list(t.Context()), "110 whole=false"
		if errors.Is(err, errRelist) != c.older {
			t.Errorf("%+v: %v", c, err)
		}
		if c.older {
			if len(told) > 0 {
				t.Errorf("%+v: handed over %+v", c, told)
			}
			err, want = s.list(t.Context()), "110 whole=false, 1000 whole=true"
		}
		if err != nil || len(told) != 3 || told[0].replaced != c.older || s.rewound || s.known["node1"].version != "101" {
			t.Errorf("%+v: %v, %+v", c, err, told)
		}
		if got := strings.Join(asked, ", "); got != want {
			t.Errorf("%+v: asked for %s", c, got)
		}
	}
}

// A node that was cut off while its own Node was deleted does not take the store for another one.
func TestOwnNodeWasDeleted(t *testing.T) {
	for _, c := range []struct {
		recreated int // number of Nodes with another UID than before
		replaced  bool
	}{{0, false}, {3, false}, {4, true}, {7, true}} {
		list := &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: "1000"}}
		s := &follower{feed: feed{activity: "test"}, lookups: newLookups(), reached: "110", floor: "110", known: map[string]known{"own": {uid: "u-1"}}}
		for i := range 9 {
			n := kubetest.Sample(i)
			k := known{uid: "u-1", version: "10", cidrs: []string{"10.5.1.0/24"}}
			if i < c.recreated {
				k.uid = "u-0"
			}
			if s.known[n.Name] = k; i < 8 { // node8 was deleted, too
				list.Items = append(list.Items, *n)
			}
		}
		s.m = offline(t, false, func(*http.Request) (int, []byte) { return http.StatusOK, kubetest.Encode(t, list, "NodeList") })
		var told []change
		s.handle = toSlice(&told)
		err := s.list(t.Context())
		gone := 0
		for _, is := range told {
			if is.node == nil {
				gone++
			}
			if is.replaced != c.replaced {
				t.Errorf("%d recreated: %s: replaced is %t", c.recreated, is.name, is.replaced)
			}
		}
		if err != nil || gone != 2 {
			t.Errorf("%d recreated: %v, %d are gone", c.recreated, err, gone)
		}
	}
}

// An API server that is too busy gets the next list of a large cluster later than that of a small one, and no check of the
// store before each watch.
func TestBusyServer(t *testing.T) {
	t.Run("small", func(t *testing.T) { // at most Retry-After and subnet.Pause
		synctest.Test(t, func(t *testing.T) { busyServer(t, 10, time.Second, 3100*time.Millisecond) })
	})
	t.Run("large", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { busyServer(t, 5000, 8*time.Second, 34*time.Second) })
	})
}

// A watch that the API server was too busy to open may begin in another store: it is checked once it is open. A later watch
// is not, nor is one after a list.
func TestRestoredWhileBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		version, lists, watches, checks := "1000", 0, 0, 0
		busy := func() (int, []byte) {
			return http.StatusTooManyRequests, kubetest.Encode(t, tooManyRequests(), "Status")
		}
		m := offline(t, false, func(r *http.Request) (int, []byte) {
			switch q := r.URL.Query(); {
			case q.Get("limit") != "":
				checks++
			case q.Get("watch") != "":
				switch watches++; watches {
				case 1:
					version = "70" // restored
				case 2, 3, 6:
					return busy()
				case 9:
					return http.StatusGone, kubetest.Encode(t, &metav1.Status{Code: http.StatusGone, Reason: metav1.StatusReasonExpired}, "Status")
				case 11:
					cancel()
				}
				return http.StatusOK, nil // the watch ends regularly
			default:
				if lists++; lists == 3 {
					return busy()
				}
			}
			return http.StatusOK, kubetest.Encode(t, &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: version},
				Items: []corev1.Node{*kubetest.Sample(0)}}, "NodeList")
		})
		var told []change
		if err := m.follow(ctx, feed{activity: "test", handle: toSlice(&told)}); err != nil {
			t.Fatal(err)
		}
		if len(told) != 3 || told[0].replaced || !told[1].replaced || told[2].replaced || checks != 3 { // before the first list, in watch 4 and in watch 7
			t.Errorf("%d checks, handed over %+v", checks, told)
		}
	})
}

func busyServer(t *testing.T, nodes int, least, most time.Duration) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	list := &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: "1000"}}
	for i := range nodes {
		n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("node", i), UID: "u-1", ResourceVersion: "100"}}
		list.Items = append(list.Items, n)
	}
	checks, watches := 0, 0
	var lists []time.Time
	status := func(code int, s *metav1.Status) (int, []byte) { return code, kubetest.Encode(t, s, "Status") }
	m := offline(t, false, func(r *http.Request) (int, []byte) {
		switch q := r.URL.Query(); {
		case q.Get("limit") != "":
			checks++
			return http.StatusOK, kubetest.Encode(t, &corev1.NodeList{ListMeta: list.ListMeta}, "NodeList")
		case q.Get("watch") == "":
			if lists = append(lists, time.Now()); len(lists) > 1 && len(lists) < 7 {
				return status(http.StatusTooManyRequests, tooManyRequests())
			}
			return http.StatusOK, kubetest.Encode(t, list, "NodeList")
		}
		if watches++; watches == 1 {
			return status(http.StatusGone, &metav1.Status{Code: http.StatusGone, Reason: metav1.StatusReasonExpired})
		}
		if watches == 5 {
			cancel()
		}
		return status(http.StatusTooManyRequests, tooManyRequests())
	})
	var told []change
	if err := m.follow(ctx, feed{activity: "test", handle: toSlice(&told)}); err != nil || len(told) != 2*nodes {
		t.Errorf("%d nodes: %v, %d changes", nodes, err, len(told))
	}
	for i := 2; i < len(lists); i++ {
		if d := lists[i].Sub(lists[i-1]); d < least || d > most {
			t.Errorf("%d nodes: a list %v after the one before, want %v to %v", nodes, d, least, most)
		}
	}
	if len(lists) != 7 || checks != 1 { // the check before the first list
		t.Errorf("%d nodes: %d lists and %d checks, want 7 and 1", nodes, len(lists), checks)
	}
}
