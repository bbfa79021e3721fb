package kube

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"flannel/backend"
	"flannel/internal/test/eventually"
	"flannel/internal/test/kubetest"
	"flannel/pkg/plan"
	"flannel/pkg/underlay"
	"flannel/subnet"
)

// TestRogueNodes gives hundreds of Nodes annotations that nobody should believe: each is left out with a reason, the
// good ones stay what they are and their changes take no more requests, and nothing is left once they are gone.
func TestRogueNodes(t *testing.T) {
	t.Parallel()
	o := outside{t, kubetest.Start(t)}
	o.add("rogue-me", "10.244.1.0/24")
	n := start(t, o.Server, "rogue-me", nil)
	own := n.join(tenNet, "192.168.0.1", mac1)
	for i := range 3 {
		o.peer(fmt.Sprint("rogue-good-", i), fmt.Sprintf("10.244.%d.0/24", 10+i), fmt.Sprintf("192.168.0.%d", 10+i))
		o.annotate(fmt.Sprint("rogue-good-", i), "backend-data", vtepData(10+i))
	}
	n.Run()
	n.Sees("rogue-good-0 rogue-good-1 rogue-good-2")
	before, _ := n.Last()
	calm := changeSeen(t, o, n, 100)
	time.Sleep(1100 * time.Millisecond) // of the clock: ages are in seconds, and who comes now is younger

	rogues := rogueNotes()
	var all errgroup.Group
	all.SetLimit(8)
	for i, r := range rogues {
		name := fmt.Sprintf("rogue-bad-%03d", i)
		all.Go(func() error {
			o.peer(name, fmt.Sprintf("10.244.%d.%d/29", 20+i/32, i%32*8), "192.168.0.66")
			o.annotate(name, append([]string{"backend-data", vtepData(1000 + i)}, r...)...)
			return nil
		})
	}
	if err := all.Wait(); err != nil {
		t.Fatal(err)
	}
	b := vxlanOf(t, backend.Node{V4: true, Underlay: underlay.Link{Name: "eth0", MTU: 1500}})
	in := func() (names []string, out int) {
		s, _ := n.Last()
		p := plan.New(vxlanNet(), own, b)
		planned := p.Update(s.Leases, nil)
		rejects := append(planned.Rejects, s.Rejects...)
		for _, r := range rejects {
			if !strings.HasPrefix(r.Name, "rogue-bad-") || r.Reason == "" || len(r.Reason) > 400 {
				t.Errorf("left out: %+v", r)
			}
		}
		for _, path := range planned.Paths {
			names = append(names, path.Dst.String())
		}
		return names, len(rejects) + p.Pending() // without a type: vxlan waits for one
	}
	eventually.True(t, fmt.Sprintf("all %d rogues are left out", len(rogues)), func() bool { _, out := in(); return out == len(rogues) })
	if names, _ := in(); !slices.Equal(names, []string{"10.244.10.0/24", "10.244.11.0/24", "10.244.12.0/24"}) {
		t.Errorf("paths lead to %v", names)
	}
	besieged := changeSeen(t, o, n, 200)
	if besieged > calm+100 { // a watch may have ended meanwhile; to read each rogue once more would take thousands
		t.Errorf("11 changes of a good peer take %d requests, without rogues %d", besieged, calm)
	}
	if lines := n.logs.Count(); lines > 30 {
		t.Errorf("the manager has written %d lines:\n%s", lines, n.logs)
	}
	for i := range rogues {
		o.remove(fmt.Sprintf("rogue-bad-%03d", i))
	}
	n.Sees("rogue-good-0 rogue-good-1 rogue-good-2")
	after, _ := n.Last()
	if names, out := in(); out != 0 || len(names) != 3 || after.Leases[1] != before.Leases[1] {
		t.Errorf("paths lead to %v, %d left out", names, out)
	}
}

func vtepData(i int) string {
	return fmt.Sprintf(`{"VNI":1,"VtepMAC":"02:00:00:00:%02x:%02x"}`, i>>8, i&255)
}

// changeSeen gives a good peer 11 new MACs, one after the other, and returns how many requests the manager makes until
// it has seen them.
func changeSeen(t *testing.T, o outside, n *member, generation int) (requests int) {
	t.Helper()
	before := n.traffic.count("")
	for i := range 11 {
		data := vtepData(generation + i)
		o.annotate("rogue-good-0", "backend-data", data)
		eventually.True(t, "a good peer's change is seen", func() bool {
			s, _ := n.Last()
			return slices.ContainsFunc(s.Leases, leaseWith(data))
		})
	}
	return n.traffic.count("") - before
}

// rogueNotes are pairs of annotations and values. What an API server refuses by itself (a podCIDR that is none) is not
// among them.
func rogueNotes() (all [][]string) {
	many := func(times int, pairs ...string) {
		for range times {
			all = append(all, pairs)
		}
	}
	for _, ip := range []string{"none", "::ffff:192.168.0.9", "fd00::1", "fe80::1%eth0", "127.0.0.1", "224.0.0.1", "255.255.255.255", "0.0.0.0",
		"169.254.1.1", "10.244.10.9", "192.168.0.1", "192.168.0.300", strings.Repeat("1", 10_000), "a\nb", "\x1b[31m"} {
		many(6, "public-ip", ip)
	}
	for _, data := range []string{"{", "garbage", "null", "[]", `"x"`, "7", `{"VNI":1}`, `{"VNI":2,"VtepMAC":"02:00:00:00:00:77"}`, `{"VNI":1,"VtepMAC":"zz"}`,
		`{"VNI":1,"VtepMAC":"ff:ff:ff:ff:ff:ff"}`, `{"VNI":1,"VtepMAC":"00:00:00:00:00:00"}`, mac1, vtepData(11), strings.Repeat("[", 20_000),
		`{"x":"` + strings.Repeat("x", 200_000) + `"}`} {
		many(6, "backend-data", data)
	}
	for _, kind := range []string{"", "udp", "ipsec", "VXLAN", strings.Repeat("x", 10_000)} {
		many(6, "backend-type", kind)
	}
	return all
}

// leaseWith finds a lease by its data.
func leaseWith(data string) func(*subnet.Lease) bool {
	return func(l *subnet.Lease) bool { return string(l.V4.Data) == data }
}

// Nodes with an oversized podCIDR, which every node rejects, and those of a Node that nobody can use decide nothing: when
// all other Nodes are deleted, these are retained, and an Event says so.
func TestRejectedNodesDecideNothing(t *testing.T) {
	t.Parallel()
	o := outside{t, kubetest.Start(t)}
	o.add("judged-c", "10.244.1.0/24")
	n := start(t, o.Server, "judged-c", func(op *Options) { op.Retain = 5 * time.Minute })
	own := n.join(tenNet, "192.168.0.1", mac1)
	n.SetJudge(plan.New(vxlanNet(), own, vxlanOf(t, backend.Node{V4: true, Underlay: underlay.Link{Name: "eth0", MTU: 1500}})).Judge())
	count := 0
	node := func(name, cidr, ip string) {
		count++
		o.peer(name, cidr, ip)
		o.annotate(name, "backend-data", vtepData(count))
	}
	node("judged-a-0", "10.244.0.0/16", "192.168.0.66")
	node("judged-a-1", "10.0.0.0/8", "192.168.0.67")
	node("judged-a-2", "10.244.0.0/17", "192.168.0.68")
	for i := range 40 {
		node(fmt.Sprintf("judged-b-%02d", i), fmt.Sprintf("10.244.%d.0/24", 100+i), fmt.Sprintf("224.0.0.%d", 1+i))
	}
	for i := range 8 {
		node(fmt.Sprintf("judged-c-%d", i), fmt.Sprintf("10.244.%d.0/24", 10+i), fmt.Sprintf("192.168.0.%d", 10+i))
	}
	n.Run()
	sees := func() bool {
		s, _ := n.Last()
		return len(s.Leases) == count && !slices.ContainsFunc(s.Leases, func(l *subnet.Lease) bool { return l.V4.Data == nil })
	}
	eventually.True(t, "all are seen", sees)
	for i := range 8 {
		o.remove(fmt.Sprintf("judged-c-%d", i))
	}
	eventually.True(t, "eight are retained", func() bool { return retained(n.Recorder) == 8 })
	if !sees() {
		t.Errorf("it sees %s", n.Peers())
	}
	eventually.True(t, "an Event", func() bool { return len(o.events(reasonRetain)) > 0 })
}
