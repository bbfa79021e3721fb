package kube

import (
	"context"
	"net/http"
	"testing"
	"time"

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
