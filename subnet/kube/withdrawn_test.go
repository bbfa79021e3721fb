package kube

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flannel/internal/test/eventually"
	"flannel/internal/test/kubetest"
	"flannel/internal/test/managertest"
	"flannel/subnet"
)

// soon is how long a test waits for what takes seconds.
const soon = 5 * time.Minute

func retained(p *managertest.Recorder) int { s, _ := p.Last(); return len(s.Retained) }

func (o outside) events(reason string) (messages []string) {
	o.t.Helper()
	list, err := o.Client.CoreV1().Events(metav1.NamespaceDefault).List(context.Background(), metav1.ListOptions{FieldSelector: "reason=" + reason})
	if err != nil {
		o.t.Fatalf("list events: %v", err)
	}
	for _, e := range list.Items {
		messages = append(messages, e.InvolvedObject.Name+": "+e.Message)
	}
	return messages
}

// TestNodesAreMissing has one API server for all, since each takes seconds of a processor to start.
func TestNodesAreMissing(t *testing.T) {
	t.Parallel()
	s := kubetest.Start(t)
	t.Run("from the first list", func(t *testing.T) { serverLags(t, outside{t, s}) })
	t.Run("because all were deleted", func(t *testing.T) { allNodesDeleted(t, outside{t, s}) })
}

// kubectl delete nodes --all deletes one Node after another. The network stays as it is, our own part included; Nodes
// that come back are peers like any other once they describe themselves, and the rest can be let go.
func allNodesDeleted(t *testing.T, o outside) {
	o.add("all-0", "10.244.0.0/24")
	n := start(t, o.Server, "all-0", func(op *Options) { op.Retain = time.Hour })
	var names []string
	make := func(i int) {
		o.peer(fmt.Sprintf("all-%d", i), fmt.Sprintf("10.244.%d.0/24", i), fmt.Sprintf("192.168.0.%d", 100+i))
	}
	for i := range 8 {
		make(i + 1)
		names = append(names, fmt.Sprintf("all-%d", i+1))
	}
	all := strings.Join(names, " ")
	n.join(tenNet, "192.168.0.100", mac1)
	n.Run()
	n.Sees(all)
	before, _ := n.Last()
	for i := range 9 {
		o.remove(fmt.Sprintf("all-%d", i))
	}
	eventually.True(t, "all are retained", func() bool { return retained(n.Recorder) == 8 })
	n.Sees(all)
	eventually.True(t, "our own is missed", func() bool { return n.logs.Count("cause="+causeNoNode) == 1 })
	select {
	case err := <-n.Held:
		t.Fatalf("Hold returned %v", err)
	default:
	}

	o.add("all-0", "10.244.0.0/24") // by its kubelet
	eventually.True(t, "ours is described again", func() bool { return strings.Contains(o.ours("all-0"), "public-ip=192.168.0.100") })
	eventually.True(t, "an Event", func() bool { return len(o.events(reasonRetain)) > 0 })
	o.add("all-1", "10.244.1.0/24") // its flanneld has yet to describe it
	make(2)
	eventually.True(t, "one is back", func() bool { return retained(n.Recorder) == 7 })
	n.Sees(all)
	o.peer("all-9", "10.244.3.0/24", "192.168.0.109") // has the podCIDR of all-3
	eventually.True(t, "it displaces one", func() bool { return retained(n.Recorder) == 6 })
	n.Sees("all-1 all-2 all-9 all-4 all-5 all-6 all-7 all-8")
	if after, _ := n.Last(); !after.Leases[1].Equal(before.Leases[1]) || after.Leases[7] != before.Leases[7] {
		t.Error("a retained peer is another one")
	}
	o.peer("all-10", "10.244.4.0/23", "192.168.0.110") // around the podCIDRs of all-4 and all-5
	eventually.True(t, "it displaces two", func() bool { return retained(n.Recorder) == 4 })
	if count := n.AcceptWithdrawal(); count != 4 {
		t.Errorf("%d were let go, want 4", count)
	}
	n.Sees("all-2 all-9 all-10")
}

// The Event names how many, and nodes that come late by name leave it to others.
func TestFewWriteOfRetainedPeers(t *testing.T) {
	var set subnet.Set
	for i := range 9 {
		l := &subnet.Lease{Name: fmt.Sprint("gone", i)}
		set.Leases = append(set.Leases, l)
		set.Retained = append(set.Retained, &subnet.Retained{Lease: l})
	}
	for i := range 10 {
		set.Leases = append(set.Leases, &subnet.Lease{Name: fmt.Sprint("node", i)})
	}
	wrote := 0
	for _, l := range set.Leases[9:] {
		m := newReporter(&Manager{})
		if m.peersRetained(l.Name, set); m.status.retained != "" {
			wrote++
			if !strings.HasPrefix(m.status.retained, "9 nodes") {
				t.Errorf("%q", m.status.retained)
			}
		}
	}
	if wrote != writers {
		t.Errorf("%d nodes of 10 write, want %d", wrote, writers)
	}
}

// lagServer is an API server whose memory is behind the store: its lists from memory are as they were, and of later
// versions it knows nothing.
type lagServer struct {
	rt http.RoundTripper
	t  *testing.T

	mu      sync.Mutex
	version string // what it knows
	list    []byte // "": it does not lag
	refused int    // how often it said that it is behind
}

// RoundTrip implements http.RoundTripper.
func (l *lagServer) RoundTrip(r *http.Request) (*http.Response, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := r.URL.Query()
	if at := q.Get("resourceVersion"); r.URL.Path != "/api/v1/nodes" || q.Has("watch") || q.Has("fieldSelector") || at == "" {
		return l.rt.RoundTrip(r)
	} else if !older(l.version, at) {
		return respond(r, http.StatusOK, l.list), nil
	}
	l.refused++
	return respond(r, http.StatusGatewayTimeout, kubetest.Encode(l.t, &metav1.Status{Status: "Failure", Code: http.StatusGatewayTimeout,
		Reason: metav1.StatusReasonTimeout, Message: "Too large resource version",
		Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}}}}, "Status")), nil
}

func respond(r *http.Request, code int, body []byte) *http.Response {
	return &http.Response{StatusCode: code, Request: r, Header: http.Header{"Content-Type": {protobuf}},
		Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body))}
}

// The first set decides what stays in the kernel. An API server that lags behind must not make it an old one.
func serverLags(t *testing.T, o outside) {
	o.add("lag-0", "10.244.100.0/24")
	o.peer("lag-1", "10.244.101.0/24", "192.168.0.201")
	n := start(t, o.Server, "lag-0", nil)
	n.join(tenNet, "192.168.0.200", mac1)
	lag := &lagServer{rt: n.traffic.rt, t: t}
	old, err := o.Client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	lag.version, lag.list = old.ResourceVersion, kubetest.Encode(t, old, "NodeList")
	for i := range 5 {
		o.peer(fmt.Sprintf("lag-%d", i+2), fmt.Sprintf("10.244.%d.0/24", i+102), fmt.Sprintf("192.168.0.%d", 202+i))
	}
	n.traffic.mu.Lock()
	n.traffic.rt = lag
	n.traffic.mu.Unlock()
	sets := make(chan int, 100)
	go n.Watch(t.Context(), func(s subnet.Set) { sets <- len(s.Leases) }) //nolint:errcheck // it ends with the test
	select {
	case count := <-sets:
		if count != 6 {
			t.Errorf("the first set has %d peers of 6", count)
		}
	case <-time.After(soon):
		t.Fatal("there is no set")
	}
	if lag.refused != lagTries {
		t.Errorf("an API server that lags was asked %d times, want %d", lag.refused, lagTries)
	}
}
