package node

import (
	"context"
	"os"
	"testing"
	"time"

	"flannel/internal/test/eventually"
	"flannel/internal/test/hnstest"
	"flannel/pkg/windows/hns"
)

// kube-proxy has an endpoint for each backend of a Service. Once the source VIP is in place, Ensure does not read them,
// which node kube-proxy calls every 10 seconds, and the daemon after each change of an endpoint.
func TestThousandsOfEndpoints(t *testing.T) {
	for name, c := range map[string]struct {
		knobs hnstest.Knobs
		alien bool // kube-proxy created the endpoint of the source VIP, which has no name
	}{
		"conditions":    {},
		"only names":    {knobs: hnstest.Knobs{OnlyNames: true}},
		"no conditions": {knobs: hnstest.Knobs{NoConditions: true}},
		"kube-proxy's":  {alien: true},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.m.Turn(func(k *hnstest.Knobs) { k.OnlyNames, k.NoConditions = c.knobs.OnlyNames, c.knobs.NoConditions })
			if c.alien {
				n.pod("flannel.4096", "", "10.244.1.2", false, true)
			}
			n.ensure("10.244.1.0/24")
			if err := n.m.Admin().AddRemoteEndpoints("flannel.4096", 10_000); err != nil {
				t.Fatal(err)
			}
			ensure := func(when string, limit uint64) {
				t.Helper()
				before, _ := n.Client.Counts()
				n.ensure("10.244.1.0/24")
				after, _ := n.Client.Counts()
				t.Logf("%s: %d calls of HNS", when, after-before)
				if after-before > limit {
					t.Errorf("%s: %d calls of HNS, want at most %d", when, after-before, limit)
				}
			}
			ensure("in place", 2) // networks, the endpoint
			if c.alien || c.knobs.NoConditions {
				return // without the published ID, Ensure reads all of them once
			}
			if err := os.Remove(n.File); err != nil {
				t.Fatal(err)
			}
			ensure("without the published ID", 3) // networks, IDs with our name, the endpoint
			ensure("after that", 2)
		})
	}
}

// While Ensure reads thousands of endpoints, host-local gives addresses to pods.
func TestLockWhileReading(t *testing.T) {
	n := newNode(t)
	if err := n.m.Admin().AddRemoteEndpoints("flannel.4096", 2); err != nil {
		t.Fatal(err)
	}
	n.Client = hns.NewClient(n.m, hns.Timing{Query: 10 * time.Minute}) // the call does not end before the test says so
	n.m.Fail(hnstest.Fault{Func: "HcnQueryEndpointProperties", Hang: true})
	done := make(chan error, 1)
	go func() {
		_, err := n.Ensure(context.WithoutCancel(t.Context()), pfx("10.244.1.0/24"))
		done <- err
	}()
	eventually.True(t, "it reads", n.m.Hung)
	unlock, err := hostLocal(n.DataDir + "/flannel.4096").lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	n.pod("flannel.4096", "pod", "10.244.1.2", true, false)
	if err := unlock(); err != nil {
		t.Fatal(err)
	}
	n.m.Heal()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if v, err := ReadVIP(n.File); err != nil || v.Addr != ip("10.244.1.3") || v.Endpoint == "" {
		t.Errorf("published %+v, %v; the pod has 10.244.1.2", v, err)
	}
}

// While Ensure waits for HNS to show the endpoint of a source VIP in place, host-local gives addresses to pods.
func TestLockWhileInPlace(t *testing.T) {
	for _, published := range []bool{true, false} {
		n := newNode(t)
		n.ensure("10.244.1.0/24")
		if !published {
			if err := os.Remove(n.File); err != nil { // Ensure looks for the endpoint by its name
				t.Fatal(err)
			}
		}
		n.Client = hns.NewClient(n.m, hns.Timing{Query: 10 * time.Minute}) // the call does not end before the test says so
		n.m.Fail(hnstest.Fault{Func: "HcnQueryEndpointProperties", Hang: true})
		done := make(chan error, 1)
		go func() {
			_, err := n.Ensure(context.WithoutCancel(t.Context()), pfx("10.244.1.0/24"))
			done <- err
		}()
		eventually.True(t, "it reads", n.m.Hung)
		unlock, err := hostLocal(n.DataDir + "/flannel.4096").lock(t.Context())
		if err != nil {
			t.Errorf("published %t: %v", published, err)
		} else if err := unlock(); err != nil {
			t.Fatal(err)
		}
		n.m.Heal()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if v, err := ReadVIP(n.File); err != nil || v.Addr != ip("10.244.1.2") || v.Endpoint == "" {
			t.Errorf("published %+v, %v", v, err)
		}
	}
}

// While Ensure reads thousands of endpoints, another process puts the source VIP in place: Ensure takes the same one.
func TestOtherProcessWhileReading(t *testing.T) {
	n := newNode(t)
	if err := n.m.Admin().AddRemoteEndpoints("flannel.4096", 2); err != nil {
		t.Fatal(err)
	}
	other := n.VIPKeeper
	n.Client = hns.NewClient(n.m, hns.Timing{Query: 10 * time.Minute}) // the call does not end before the test says so
	n.m.Fail(hnstest.Fault{Func: "HcnQueryEndpointProperties", Times: 1, Hang: true})
	done := make(chan error, 1)
	var v VIP
	go func() {
		var err error
		v, err = n.Ensure(context.WithoutCancel(t.Context()), pfx("10.244.1.0/24"))
		done <- err
	}()
	eventually.True(t, "it reads", n.m.Hung)
	first, err := other.Ensure(t.Context(), pfx("10.244.1.0/24"))
	if err != nil {
		t.Fatal(err)
	}
	n.m.Heal()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if first.Addr != ip("10.244.1.2") || v != first {
		t.Errorf("the other process has %+v, this one has %+v", first, v)
	}
}
