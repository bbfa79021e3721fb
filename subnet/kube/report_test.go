package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flannel/internal/test/eventually"
	"flannel/internal/test/kubetest"
	"flannel/internal/test/logtest"
	"flannel/subnet"
)

// conditions: False when up to date, True after a while when not, and the time of the last change is kept.
func conditions(t *testing.T, o outside) {
	const grace = 5 * time.Second // a hiccup ends in time on a busy machine, too
	o.add("condition-1", "10.244.40.0/24")
	n := start(t, o.Server, "condition-1", func(op *Options) { op.Grace = grace })
	n.join(tenNet, "192.168.0.40", mac1)
	get := func() corev1.NodeCondition { return o.condition("condition-1") }
	is := func(status corev1.ConditionStatus, reason, message string) { // of which this is a part
		t.Helper()
		eventually.True(t, "the condition is "+string(status)+" "+message, func() bool {
			c := get()
			return c.Status == status && c.Reason == reason && strings.Contains(c.Message, message)
		})
	}
	n.Report(subnet.Report{})
	var first corev1.NodeCondition
	var patches int
	for hiccup := grace; hiccup > grace/2; { // until the problem is a short one
		is("False", "FlannelIsUp", "")
		first, patches = get(), n.traffic.count("PATCH")
		began := time.Now()
		n.Report(subnet.Report{Problem: errors.New("a hiccup")})
		n.Report(subnet.Report{})
		hiccup = time.Since(began)
		time.Sleep(grace + grace/10) // in which nothing may be written
	}
	again := start(t, o.Server, "condition-1", nil) // a restart
	if _, err := again.Acquire(t.Context(), tenNet, subnet.Lease{}); err != nil {
		t.Fatal(err)
	}
	again.Report(subnet.Report{})
	eventually.True(t, "the restart has looked", func() bool { return again.traffic.count("GET /api/v1/nodes/condition-1") > 0 })
	time.Sleep(200 * time.Millisecond) // in which nothing may be written
	if now := get(); now != first || n.traffic.count("PATCH") != patches || again.traffic.count("PATCH") != 0 {
		t.Errorf("was %v, is %v", first, now)
	}
	n.Report(subnet.Report{Problem: errors.New("no device")})
	is("True", "FlannelIsNotInStep", "no device")
	down := get()
	n.Report(subnet.Report{Problem: errors.New("no route")})
	is("True", "FlannelIsNotInStep", "no route")
	if now := get(); now.LastTransitionTime != down.LastTransitionTime || !first.LastTransitionTime.Before(&down.LastTransitionTime) {
		t.Errorf("the time of the change was %v, is %v", down.LastTransitionTime, now.LastTransitionTime)
	}
	n.Report(subnet.Report{})
	is("False", "FlannelIsUp", "")

	silent := start(t, o.Server, "condition-1", func(op *Options) { op.Grace, op.SetCondition = time.Millisecond, false })
	silent.Report(subnet.Report{Problem: errors.New("broken")})
	time.Sleep(300 * time.Millisecond) // in which nothing may be written
	if c := get(); c.Status != "False" || silent.traffic.count("PATCH") != 0 {
		t.Errorf("written although it is switched off: %v", c)
	}
}

// unassigned: the condition of a Node without a podCIDR says so, whatever was reported before the Node was read.
func unassigned(t *testing.T, o outside) {
	o.add("unassigned-1")
	n := start(t, o.Server, "unassigned-1", func(op *Options) { op.Grace = time.Millisecond })
	n.Report(subnet.Report{Problem: errors.New("no configuration"), LostPods: []string{"default/web"}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := n.PublicIPs(ctx)
		ended <- err
	}()
	eventually.True(t, "the condition names the podCIDR", func() bool {
		c := o.condition("unassigned-1")
		return c.Status == corev1.ConditionTrue && logtest.Names(c.Message, "unassigned-1", "podCIDR", "--allocate-node-cidrs")
	})
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	n.reporter.mu.Lock()
	defer n.reporter.mu.Unlock()
	if n.reporter.status.lostPods == "" {
		t.Error("the pods without network are forgotten")
	}
}

// events: each once, whatever is reported how often.
func events(t *testing.T, o outside) {
	o.add("events-1", "10.244.50.0/24")
	n := start(t, o.Server, "events-1", func(op *Options) { op.Grace = 500 * time.Millisecond })
	was := subnet.Lease{V4: subnet.Endpoint{Subnet: netip.MustParsePrefix("10.244.51.0/24")}}
	if _, err := n.Acquire(t.Context(), tenNet, was); err != nil {
		t.Fatal(err)
	}
	get := func() []corev1.Event {
		list, err := o.Client.CoreV1().Events("default").List(context.Background(), metav1.ListOptions{FieldSelector: "involvedObject.name=events-1"})
		if err != nil {
			t.Fatal(err)
		}
		return list.Items
	}
	told := func(reason string) func() bool {
		return func() bool {
			return slices.ContainsFunc(get(), func(e corev1.Event) bool { return e.Reason == reason })
		}
	}
	rejects := []subnet.Rejected{{Name: "a", Reason: "no MAC"}, {Name: "b", Reason: "no address"}}
	for range 100 {
		n.Report(subnet.Report{Rejects: rejects})
	}
	for range 100 {
		n.Report(subnet.Report{Problem: errors.New("cannot set routes"), Rejects: rejects})
		time.Sleep(10 * time.Millisecond) // so that the reports come one after the other
	}
	eventually.True(t, "the last event", told(reasonNotSynced))
	last := subnet.Report{Rejects: rejects[:1], Advice: "set the port", PendingConfig: "VNI 2 is pending"}
	for range 100 {
		n.Report(last)
	}
	eventually.True(t, "it is over", told(reasonSynced))
	for range 100 {
		n.ReportUnreachable([]string{"c", "d"})
	}
	eventually.True(t, "peers are unreachable", told(reasonUnreachable))
	n.ReportUnreachable(nil)
	eventually.True(t, "they are reachable", told(reasonReachable))
	last.LostPods = []string{"default/web", "kube-system/dns"}
	n.Report(last)
	eventually.True(t, "pods have lost their network", told(reasonLostPods))
	want := []struct {
		kind, reason string
		names        []string
	}{
		{"Warning", "FlannelSubnetChanged", []string{"10.244.50.0/24", "10.244.51.0/24"}},
		{"Warning", "FlannelPeersLeftOut", []string{" 2 ", "a (no MAC)", "b (no address)"}},
		{"Warning", "FlannelNotInStep", []string{"cannot set routes"}},
		{"Warning", "FlannelMixedCluster", []string{"set the port"}},
		{"Warning", "FlannelConfigurationPending", []string{"VNI 2 is pending"}},
		{"Normal", "FlannelInStep", nil},
		{"Warning", "FlannelPeersUnreachable", []string{" 2 ", "c, d"}},
		{"Normal", "FlannelPeersReachable", nil},
		{"Warning", "FlannelPodsLostNetwork", []string{"2 ", "default/web, kube-system/dns"}},
	}
	got := get()
	for i, w := range want {
		if len(got) != len(want) || got[i].Type != w.kind || got[i].Reason != w.reason || !logtest.Names(got[i].Message, w.names...) {
			t.Fatalf("events are\n%+v\nwant\n%v", got, want)
		}
	}
}

// restoredStore: one that was restored from a backup has not yet got to where we are.
func restoredStore(t *testing.T, o outside) {
	o.add("restored-0", "10.244.60.0/24")
	o.peer("restored-1", "10.244.61.0/24", "192.168.0.61")
	n := start(t, o.Server, "restored-0", nil)
	p := peersOf("restored-0", n.Record)
	s := &follower{m: n.Manager, feed: feed{activity: "test", handle: p.handle}, version: "999999999999", reached: "999999999999", broken: true, known: map[string]known{}, lookups: newLookups()}
	if err := s.run(t.Context()); !errors.Is(err, errRelist) || n.logs.Count("cause="+causeStoreOlder) != 1 {
		t.Errorf("from a future: %v", err)
	}
}

// boundToItsNode: the policy refuses what is not this node's, and that is said.
func boundToItsNode(t *testing.T, o outside) {
	o.add("bound-1", "10.244.65.0/24")
	o.add("bound-2", "10.244.66.0/24")
	kubeconfig, _ := o.Kubeconfig(o.Token("bound-2"), "")
	n := start(t, o.Server, "bound-1", func(op *Options) { op.Kubeconfig = kubeconfig })
	l, err := n.Acquire(t.Context(), tenNet, subnet.Lease{})
	if err != nil {
		t.Fatal(err)
	}
	i := 0
	eventually.True(t, "it is refused", func() bool { // the server takes a while until it heeds a new policy
		i++
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // it is tried again
		defer cancel()
		err = n.Publish(ctx, described(l, fmt.Sprintf("192.168.0.%d", i%200+1), mac1))
		return err != nil && strings.Contains(n.logs.String()+err.Error(), "bound-2")
	})
	t.Log(err)
}

// heartbeats of other nodes, with 50 images each, cost little.
func heartbeats(t *testing.T, o outside) {
	o.add("heartbeat-0", "10.244.70.0/24")
	n := start(t, o.Server, "heartbeat-0", nil)
	n.join(tenNet, "192.168.0.70", mac1)
	o.peer("heartbeat-1", "10.244.71.0/24", "192.168.0.71")
	node := o.node("heartbeat-1")
	node.Status = kubetest.Sample(0).Status
	if _, err := o.Client.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	// A watch of its own, which sees this node alone: the others of this cluster do not stand still.
	var mu sync.Mutex
	var calls, versions int
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go n.follow(ctx, feed{activity: "test", only: "heartbeat-1", handle: func(_ context.Context, changes []change) error { //nolint:errcheck // nil
		mu.Lock()
		defer mu.Unlock()
		calls++
		versions += len(changes)
		return nil
	}})
	seen := func() int { mu.Lock(); defer mu.Unlock(); return versions }
	eventually.True(t, "the watch stands", func() bool { return seen() > 0 })
	const beats = 50
	before, from := n.traffic.received.Load(), seen()
	for i := range beats {
		o.heartbeat("heartbeat-1", i)
	}
	eventually.True(t, "all are seen", func() bool { return seen() >= from+beats })
	each := (n.traffic.received.Load() - before) / beats
	t.Logf("%d bytes for each", each)
	if each > 3000 {
		t.Errorf("%d bytes for each, more than 3000", each)
	}
}

// A pass reports while our Node is made anew: each of the two waits for a lock, and neither may have the other's.
func TestReportWhileTheNodeChanges(t *testing.T) {
	t.Parallel()
	m := &Manager{name: "node", log: slog.New(slog.DiscardHandler), restore: make(chan struct{}, 1)}
	m.reporter = newReporter(m)
	made := func(uid string) change {
		return change{name: "node", node: &storedNode{Name: "node", UID: uid, CIDRs: []string{"10.244.1.0/24"}}}
	}
	c := &ownNode{node: made("0").node, v4: netip.MustParsePrefix("10.244.1.0/24")}
	done := make(chan error, 2)
	go func() {
		for range 20_000 {
			m.Report(subnet.Report{Rejects: []subnet.Rejected{{Name: "rogue"}}})
		}
		done <- nil
	}()
	go func() {
		var err error
		for i := range 20_000 {
			err = errors.Join(err, m.observeOwn(c, made(fmt.Sprint(i+1))))
		}
		done <- err
	}()
	for range 2 {
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(soon):
			t.Fatal("they wait for each other")
		}
	}
}

// The pauses after failed writes differ, so that the nodes of a cluster do not try again together after an outage.
func TestFailedReportsAreSpread(t *testing.T) {
	for what, condition := range map[string]bool{"the condition": true, "an Event": false} {
		synctest.Test(t, func(t *testing.T) {
			var tries []time.Time
			m := offline(t, condition, func(*http.Request) (int, []byte) {
				tries = append(tries, time.Now())
				return http.StatusInternalServerError, nil
			})
			m.mu.Lock()
			m.name = "own"
			if !condition { // without a Node, no Event is written
				m.own = &ownNode{node: &storedNode{Name: "own", UID: "1"}}
			}
			m.mu.Unlock()
			m.Report(subnet.Report{LostPods: []string{"default/web"}})
			time.Sleep(20 * retryPause)
			synctest.Wait()
			pauses := map[time.Duration]bool{}
			for i, at := range tries[min(1, len(tries)):] {
				pauses[at.Sub(tries[i])] = true
			}
			if len(tries) < 15 || len(tries) > 28 || len(pauses) < len(tries)-2 {
				t.Errorf("%s: %d tries, with the pauses %v", what, len(tries), pauses)
			}
		})
	}
}
