package kube

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"flannel/internal/test/eventually"
	"flannel/subnet"
)

// While the API server does not answer a patch of the annotations, neither reports nor probes nor PublicIPs wait for it.
func unanswered(t *testing.T, o outside) {
	o.add("unanswered-1", "10.244.41.0/24")
	patched, answer := make(chan struct{}, 100), make(chan struct{})
	noCondition := func(o *Options) { o.SetCondition = false } // its patches are others
	n := startWith(t, o.Server, "unanswered-1", noCondition, func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		if r.Method == http.MethodPatch {
			patched <- struct{}{}
			<-answer // also after the end of r.Context: the time that the test needs does not matter
		}
		return next.RoundTrip(r)
	})
	l, err := n.Acquire(t.Context(), tenNet, subnet.Lease{})
	if err != nil {
		t.Fatal(err)
	}
	published := make(chan error, 1)
	go func() { published <- n.Publish(t.Context(), described(l, "192.168.0.41", mac1)) }()
	<-patched
	returned := make(chan struct{})
	go func() {
		n.Report(subnet.Report{Rejects: []subnet.Rejected{{Name: "rogue"}}})
		n.ReportUnreachable([]string{"unanswered-2"})
		if _, err := n.PublicIPs(context.Background()); err != nil || n.NodeName() != "unanswered-1" {
			t.Errorf("PublicIPs: %v; the Node is %q", err, n.NodeName())
		}
		close(returned)
	}()
	select {
	case <-returned:
	case <-time.After(soon):
		t.Error("they wait for the answer to the patch")
	}
	close(answer)
	if err := <-published; err != nil {
		t.Error(err)
	}
	if got := o.ours("unanswered-1"); got == "" {
		t.Error("nothing was published")
	}
}

// What answers is not the API server, but something else, which has no such page: this is an outage, and no missing Node.
func notTheAPI(t *testing.T, o outside) {
	o.add("elsewhere-1", "10.244.49.0/24")
	n := startWith(t, o.Server, "elsewhere-1", nil, func(r *http.Request, _ http.RoundTripper) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusNotFound, Header: http.Header{"Content-Type": {"text/html"}},
			Body: io.NopCloser(strings.NewReader("<p>no such page</p>")), Request: r}, nil
	})
	if found, err := n.api.NodesByName(t.Context(), map[string]*storedNode{"elsewhere-1": nil}, ""); err == nil {
		t.Errorf("the Node seems to be missing: %v", found)
	}
	ctx, cancel := context.WithCancel(t.Context())
	acquired := make(chan error)
	go func() { _, err := n.Acquire(ctx, tenNet, subnet.Lease{}); acquired <- err }()
	eventually.True(t, "the outage is said", func() bool { return n.logs.Count("cause=store-silent") == 1 })
	cancel()
	if err := <-acquired; err == nil {
		t.Error("it got a lease")
	}
}
