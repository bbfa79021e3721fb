package kube

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flannel/internal/test/eventually"
	"flannel/internal/test/kubetest"
	"flannel/internal/test/logtest"
	"flannel/subnet"
)

// The life of nodes in a quiet cluster. They share one, since each takes seconds to start; nobody gives them podCIDRs
// but the tests.
func TestNodes(t *testing.T) {
	t.Parallel()
	s := kubetest.Start(t)
	for name, test := range map[string]func(*testing.T, outside){
		"Life": life, "Waiting": waiting, "Pod": byPod, "Misfit": misfit, "Hands": otherHands, "Operator": operator, "Chosen": chosen, "Anew": anew,
		"Disagreeing": disagreeing, "Garbage": garbage, "Unmanaged": unmanaged, "Condition": conditions, "Unassigned": unassigned, "Events": events, "Restored": restoredStore,
		"Bound": boundToItsNode, "Heartbeat": heartbeats, "Examined": examined, "Services": services,
		"Order": lookedUpInOrder, "Label": byLabel, "Without": withoutPodCIDR, "FewEvents": fewEvents,
		"Published": published, "Sources": overwrittenSources, "Unanswered": unanswered, "NotTheAPI": notTheAPI,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, outside{t, s})
		})
	}
}

// add makes a Node with these podCIDRs.
func (o outside) add(name string, cidrs ...string) {
	o.t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if len(cidrs) > 0 {
		n.Spec.PodCIDR, n.Spec.PodCIDRs = cidrs[0], cidrs
	}
	if _, err := o.Client.CoreV1().Nodes().Create(context.Background(), n, metav1.CreateOptions{}); err != nil {
		o.t.Fatalf("create node: %v", err)
	}
}

// assign gives a Node its podCIDR, as the node-ipam controller does.
func (o outside) assign(name, cidr string) {
	o.t.Helper()
	raw := fmt.Sprintf(`{"spec":{"podCIDR":%q,"podCIDRs":[%q]}}`, cidr, cidr)
	if _, err := o.Client.CoreV1().Nodes().Patch(context.Background(), name, "application/strategic-merge-patch+json", []byte(raw), metav1.PatchOptions{}); err != nil {
		o.t.Fatalf("assign: %v", err)
	}
}

func prefixes(cidrs ...string) (all []netip.Prefix) {
	for _, c := range cidrs {
		all = append(all, netip.MustParsePrefix(c))
	}
	return all
}

func life(t *testing.T, o outside) {
	cidrs := prefixes("10.244.1.0/24", "fd00:244:0:1::/64")
	o.add("life-1", cidrs[0].String(), cidrs[1].String())
	o.add("life-2", "10.244.2.0/24", "fd00:244:0:2::/64")
	one, two := start(t, o.Server, "life-1", nil), start(t, o.Server, "life-2", nil)
	l := one.join(dualNet, "192.168.0.1", mac1)
	if l.V4.Subnet != cidrs[0] || l.V6.Subnet != cidrs[1] || l.Name != "life-1" {
		t.Errorf("acquired %v, not %v", &l, cidrs)
	}
	if got, want := o.ours("life-1"), `kube-subnet-manager=true
backend-type=vxlan
backend-data=`+mac1+`
backend-v6-data=`+mac1+`
public-ip=192.168.0.1
public-ipv6=2001:db8::1`; got != want {
		t.Errorf("annotations are\n%s\nwant\n%s", got, want)
	}
	two.join(dualNet, "192.168.0.2", mac2)
	two.Run()
	one.Run()
	two.Sees("life-1")
	one.Sees("life-2")

	if err := one.Publish(t.Context(), l); err != nil || one.traffic.count("PATCH") != 1 {
		t.Errorf("published the same: %v, %v", err, one.traffic.requests)
	}
	l.V6.Data = []byte(mac2) // one family of two
	if err := one.Publish(t.Context(), l); err != nil {
		t.Error(err)
	}
	eventually.True(t, "a change of one family is seen", func() bool {
		s, _ := two.Last()
		for _, seen := range s.Leases {
			if seen.Name == "life-1" && string(seen.V6.Data) == mac2 {
				if l.Since == 0 || seen.Since != l.Since {
					t.Errorf("it is since %d for itself and since %d for the others", l.Since, seen.Since)
				}
				return true
			}
		}
		return false
	})
	if n := one.traffic.count("PATCH"); n != 2 {
		t.Errorf("%d patches for two changes", n)
	}

	// Another start of the same node writes nothing.
	again := start(t, o.Server, "life-1", nil)
	found, err := again.Acquire(t.Context(), dualNet, subnet.Lease{})
	if err != nil || !found.Equal(&l) {
		t.Errorf("found %v, %v, want %v", &found, err, &l)
	}
	if err := again.Publish(t.Context(), l); err != nil || again.traffic.count("PATCH") != 0 {
		t.Errorf("a restart patched: %v, %v", err, again.traffic.requests)
	}
	// One that uses IPv4 alone sees that, and takes the rest away.
	found, err = again.Acquire(t.Context(), tenNet, subnet.Lease{})
	if err != nil || found.V6.On() {
		t.Errorf("found %v, %v", &found, err)
	}
	o.remove("life-2")
	one.Sees("")
	if one.logs.Count("level=WARN") != 0 {
		t.Errorf("warnings in a quiet life:\n%s", one.logs)
	}
}

// waiting: for the Node, then for its podCIDR, each said once.
func waiting(t *testing.T, o outside) {
	o.add("waiting-0")
	kubeconfig, _ := o.Kubeconfig(o.Token("waiting-0"), "")
	var reasons logtest.Log
	n := start(t, o.Server, "waiting-1", func(op *Options) {
		op.Kubeconfig = kubeconfig
		op.Waiting = func(reason string) { fmt.Fprintln(&reasons, reason) }
	})
	got := make(chan subnet.Lease, 1)
	go func() {
		l, err := n.Acquire(t.Context(), tenNet, subnet.Lease{})
		if err != nil {
			t.Error(err)
		}
		got <- l
	}()
	eventually.True(t, "the missing Node is said", func() bool { return n.logs.Count("cause="+causeNoNode) == 1 })
	o.add("waiting-1")
	eventually.True(t, "the missing podCIDR is said", func() bool { return n.logs.Count("cause="+causeNoPodCIDR) == 1 })
	for i := range 5 {
		o.heartbeat("waiting-1", i)
	}
	o.assign("waiting-1", "10.244.3.0/24")
	begin := time.Now()
	if l := <-got; l.V4.Subnet.String() != "10.244.3.0/24" || l.Backend != "" {
		t.Errorf("acquired %v", &l)
	}
	t.Logf("acquired after %v", time.Since(begin))
	if n.logs.Count("level=WARN") != 2 || !logtest.Names(reasons.String(), "waiting-1", "podCIDR", "--allocate-node-cidrs") || o.ours("waiting-1") != "" {
		t.Errorf("said %s\nand %s; the Node has %q", n.logs, &reasons, o.ours("waiting-1"))
	}
}

// byPod: the name of the node is asked of the API, which the role of the manifest allows. Without the pod, and while it
// has no node, each is said once, and is no outage.
func byPod(t *testing.T, o outside) {
	o.add("pod-1", "10.244.4.0/24")
	kubeconfig, _ := o.Kubeconfig(o.Token("pod-1"), "")
	var reasons logtest.Log
	n := start(t, o.Server, "pod-1", func(op *Options) {
		op.Kubeconfig, op.NodeName, op.PodName, op.PodNamespace = kubeconfig, "", "flannel-x", "default"
		op.Waiting = func(reason string) { fmt.Fprintln(&reasons, reason) }
	})
	got := make(chan subnet.Lease, 1)
	go func() {
		l, err := n.Acquire(t.Context(), tenNet, subnet.Lease{})
		if err != nil {
			t.Error(err)
		}
		got <- l
	}()
	eventually.True(t, "the missing pod is said", func() bool { return n.logs.Count("cause="+causeNoPod) == 1 })
	if !logtest.Names(reasons.String(), "default/flannel-x", "NODE_NAME", "POD_NAME", "POD_NAMESPACE") {
		t.Errorf("said %s", &reasons)
	}
	_, err := o.Client.CoreV1().ServiceAccounts("default").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pods := o.Client.CoreV1().Pods("default")
	_, err = pods.Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "flannel-x"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "a"}}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "the missing node of the pod is said", func() bool { return n.logs.Count("cause="+causeNoPod) == 2 })
	if err := n.outage.Err(); err != nil {
		t.Errorf("the API server answers, and this is said: %v", err)
	}
	err = pods.Bind(t.Context(), &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "flannel-x"}, Target: corev1.ObjectReference{Kind: "Node", Name: "pod-1"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if l := <-got; l.Name != "pod-1" || n.logs.Count("cause="+causeNoPod) != 2 {
		t.Errorf("acquired %v for %q\n%s", &l, l.Name, n.logs)
	}
}

// misfit: a podCIDR that cannot be used is told, and not waited for.
func misfit(t *testing.T, o outside) {
	o.add("misfit-1", "10.99.1.0/24")
	o.add("misfit-2", "10.244.5.0/24")
	for _, c := range []struct {
		name string
		cfg  subnet.Config
		want []string // what the error names
	}{
		{"misfit-1", tenNet, []string{"10.99.1.0/24", "misfit-1", "10.244.0.0/16", "--cluster-cidr"}},
		{"misfit-2", dualNet, []string{"misfit-2", "IPv6", "10.244.5.0/24", "--cluster-cidr", "delete it"}},
	} {
		n := start(t, o.Server, c.name, nil)
		if _, err := n.Acquire(t.Context(), c.cfg, subnet.Lease{}); err == nil || !logtest.Names(err.Error(), c.want...) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	o.add("misfit-3", "10.244.0.0/16") // a cluster of one node
	alone := start(t, o.Server, "misfit-3", nil)
	if l, err := alone.Acquire(t.Context(), tenNet, subnet.Lease{}); err != nil || l.V4.Subnet != tenNet.V4.Prefix || alone.logs.Count("cause="+causeWholeNetwork) != 1 {
		t.Errorf("%v, %v\n%s", l, err, alone.logs)
	}
	n := start(t, o.Server, "misfit-2", nil)
	was := subnet.Lease{V4: subnet.Endpoint{Subnet: netip.MustParsePrefix("10.244.77.0/24")}}
	if _, err := n.Acquire(t.Context(), tenNet, was); err != nil || n.logs.Count("cause="+causeSubnetChanged) != 1 {
		t.Errorf("%v\n%s", err, n.logs)
	}
}

// otherHands: our annotations are put back, ever more slowly, and nothing else is touched.
func otherHands(t *testing.T, o outside) {
	o.add("hands-1", "10.244.6.0/24")
	n := start(t, o.Server, "hands-1", nil)
	n.join(tenNet, "192.168.0.6", mac1)
	whole := o.ours("hands-1")
	n.Run()
	restorerDone := func(what string) {
		t.Helper()
		eventually.True(t, what, func() bool { return o.ours("hands-1") == whole })
	}
	o.annotate("hands-1", "kube-subnet-manager", "", "backend-data", "", "backend-type", "", "public-ip", "")
	restorerDone("all were deleted, and are back")
	o.annotate("hands-1", "backend-data", mac2)
	restorerDone("one was changed, and is back")
	o.annotate("hands-1", "public-ip", "192.168.0.66")
	restorerDone("another was changed, and is back")
	if n.logs.Count("cause="+causeOverwritten) != 1 || n.logs.Count("cause="+causeConflict) != 1 || n.traffic.count("PATCH") != 4 {
		t.Errorf("%d patches\n%s", n.traffic.count("PATCH"), n.logs)
	}
	o.annotate("hands-1", "backend-v6-data", "x") // not a family of ours: gone in the end, too
	restorerDone("a foreign one is gone")
}

// operator: annotations that say what to tell the others are followed as they come and go.
func operator(t *testing.T, o outside) {
	o.add("operator-1", "10.244.7.0/24")
	o.annotate("operator-1", "public-ip-overwrite", "203.0.113.7")
	n := start(t, o.Server, "operator-1", nil)
	if _, err := n.PublicIPs(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.join(tenNet, "192.168.0.7", mac1)
	n.Run()
	told := func(want string) {
		t.Helper()
		eventually.True(t, "public-ip is "+want, func() bool { return o.node("operator-1").Annotations[prefix+"public-ip"] == want })
	}
	told("203.0.113.7")
	o.annotate("operator-1", "public-ip-overwrite", "203.0.113.8")
	told("203.0.113.8")
	o.annotate("operator-1", "public-ip-overwrite", "nonsense")
	told("192.168.0.7")
	o.annotate("operator-1", "public-ip-overwrite", "203.0.113.7")
	told("203.0.113.7")
	o.annotate("operator-1", "public-ip-overwrite", "127.0.0.1") // no peer would accept it
	told("192.168.0.7")
	if n.logs.Count("cause="+causeAnnotationIgnored) != 2 || n.logs.Count("cause="+causeConflict) != 0 {
		t.Errorf("log:\n%s", n.logs)
	}
}

// disagreeing: two controllers that change an operator's annotation in turn are followed ever more slowly, up to the last
// change.
func disagreeing(t *testing.T, o outside) {
	o.add("disagreeing-1", "10.244.24.0/24")
	o.annotate("disagreeing-1", "public-ip-overwrite", "203.0.113.20")
	n := start(t, o.Server, "disagreeing-1", nil)
	if _, err := n.PublicIPs(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.join(tenNet, "192.168.0.20", mac1)
	n.Run()
	began := time.Now()
	for i := range 200 {
		o.annotate("disagreeing-1", "public-ip-overwrite", fmt.Sprintf("203.0.113.%d", 21+i%2))
	}
	o.annotate("disagreeing-1", "public-ip-overwrite", "203.0.113.23")
	eventually.True(t, "the last address is published", func() bool {
		return o.node("disagreeing-1").Annotations[prefix+"public-ip"] == "203.0.113.23"
	})
	// See subnet.Conflict. The first patch is that of join.
	most := 13 + 8*int(time.Since(began)/time.Minute)
	if patches := n.traffic.count("PATCH") - 1; patches > most || n.logs.Count() > 3*most {
		t.Errorf("%d patches, want at most %d, and the log:\n%s", patches, most, n.logs)
	}
}

// chosen: annotations that say what this node's addresses are, from before the start and as they come and go.
func chosen(t *testing.T, o outside) {
	o.add("chosen-1", "10.244.19.0/24")
	o.annotate("chosen-1", "node-public-ip", "203.0.113.9")
	n := start(t, o.Server, "chosen-1", nil)
	says := func(want subnet.PublicIPs) {
		t.Helper()
		eventually.True(t, fmt.Sprintf("the operator says %v", want), func() bool {
			got, err := n.PublicIPs(t.Context())
			return err == nil && got == want
		})
	}
	says(subnet.PublicIPs{V4: netip.MustParseAddr("203.0.113.9")})
	changed := n.PublicIPsChanged()
	<-changed // from nothing
	if _, err := n.Acquire(t.Context(), tenNet, subnet.Lease{}); err != nil {
		t.Fatal(err)
	}
	// The daemon cannot use the subnet with that address, and tries again.
	o.annotate("chosen-1", "node-public-ip", "203.0.113.11")
	says(subnet.PublicIPs{V4: netip.MustParseAddr("203.0.113.11")})
	<-changed
	n.join(tenNet, "192.168.0.19", mac1)
	n.Run()
	o.annotate("chosen-1", "node-public-ip", "203.0.113.10", "node-public-ipv6", "2001:db8::10")
	<-changed
	says(subnet.PublicIPs{V4: netip.MustParseAddr("203.0.113.10"), V6: netip.MustParseAddr("2001:db8::10")})
	o.annotate("chosen-1", "node-public-ip", "nonsense", "node-public-ipv6", "")
	<-changed
	says(subnet.PublicIPs{})
	o.annotate("chosen-1", "node-public-ip", "0.0.0.0", "node-public-ipv6", "2001:db8::10")
	<-changed
	says(subnet.PublicIPs{V6: netip.MustParseAddr("2001:db8::10")}) // 0.0.0.0 is ignored
	if n.logs.Count("cause="+causeAnnotationIgnored) != 2 {
		t.Errorf("log:\n%s", n.logs)
	}
}

// anew: the Node is deleted and made again, with the same podCIDR and with another one.
func anew(t *testing.T, o outside) {
	o.add("anew-1", "10.244.8.0/24")
	o.add("anew-2", "10.244.9.0/24")
	// Kubelet would get a new token for a new pod; what is tested here is another thing.
	kubeconfig := o.File("admin.kubeconfig")
	n := start(t, o.Server, "anew-1", func(op *Options) { op.Kubeconfig = kubeconfig })
	l := n.join(tenNet, "192.168.0.8", mac1)
	whole := o.ours("anew-1")
	n.Run()
	n.Report(subnet.Report{})
	eventually.True(t, "the Node has the condition", func() bool { return o.condition("anew-1").Status == corev1.ConditionFalse })
	n.Sees("")
	o.peer("anew-3", "10.244.10.0/24", "192.168.0.10")
	n.Sees("anew-3")

	o.remove("anew-1")
	eventually.True(t, "the deletion is said", func() bool { return n.logs.Count("cause="+causeNoNode) == 1 })
	missing := func(cause string) func() bool {
		return func() bool {
			s, _ := n.Last()
			var why *missingError
			return errors.As(s.OwnMissing, &why) && why.cause == cause || s.OwnMissing == nil && cause == ""
		}
	}
	eventually.True(t, "the daemon knows of it", missing(causeNoNode))
	o.add("anew-1")
	eventually.True(t, "the missing podCIDR is said", func() bool { return n.logs.Count("cause="+causeNoPodCIDR) == 1 })
	if got := o.ours("anew-1"); got != "" {
		t.Errorf("annotated before it has a podCIDR: %s", got)
	}
	eventually.True(t, "the daemon knows of that", missing(causeNoPodCIDR))
	o.assign("anew-1", "10.244.8.0/24")
	eventually.True(t, "nothing is missing", missing(""))
	eventually.True(t, "annotations are back", func() bool { return o.ours("anew-1") == whole })
	eventually.True(t, "the condition is back", func() bool { return o.condition("anew-1").Status == corev1.ConditionFalse })

	// A peer that is made anew with another podCIDR.
	o.remove("anew-3")
	o.peer("anew-3", "10.244.11.0/24", "192.168.0.10")
	eventually.True(t, "the peer's new subnet is seen", func() bool {
		s, _ := n.Last()
		for _, l := range s.Leases {
			if l.Name == "anew-3" {
				return l.V4.Subnet.String() == "10.244.11.0/24"
			}
		}
		return false
	})

	o.remove("anew-1")
	o.add("anew-1")
	o.assign("anew-1", "10.244.12.0/24")
	select {
	case err := <-n.Held:
		if !errors.Is(err, subnet.ErrMoved) {
			t.Fatalf("Hold: %v", err)
		}
		t.Log(err)
	case <-time.After(soon):
		t.Fatal("the other podCIDR was not noticed")
	}
	again, err := n.Acquire(t.Context(), tenNet, l)
	if err != nil || again.V4.Subnet.String() != "10.244.12.0/24" || again.Backend != "" {
		t.Errorf("acquired %v, %v", &again, err)
	}
	if n.Publish(t.Context(), l) == nil {
		t.Error("the former lease was published")
	}
	if err := n.Publish(t.Context(), described(again, "192.168.0.8", mac1)); err != nil || o.ours("anew-1") != whole {
		t.Errorf("%v: %s", err, o.ours("anew-1"))
	}
}
