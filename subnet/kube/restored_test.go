package kube

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"flannel/subnet"
	"flannel/subnet/kube/kubetest"
)

// A store that is restored from a backup lacks the Nodes that came after it: nobody deleted them, so they stay peers.
// What is deleted afterwards is deleted, and what is said afterwards counts.
func TestRestored(t *testing.T) {
	t.Parallel()
	s := kubetest.Start(t)
	o := outside{t, s}
	o.add("restored-0", "10.244.1.0/24")
	o.peer("restored-1", "10.244.2.0/24", "192.168.0.2")
	o.peer("restored-2", "10.244.3.0/24", "192.168.0.3")
	n := start(t, s, "restored-0", nil)
	l := n.join(tenNet, "192.168.0.1", mac1)
	s.Backup()
	for name, at := range map[string][2]string{"restored-3": {"10.244.4.0/24", "192.168.0.4"}, "restored-4": {"10.244.5.0/24", "192.168.0.5"}} {
		o.peer(name, at[0], at[1])
	}
	l.V4.Data = []byte(mac2)
	if err := n.Publish(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	n.Run()
	n.Sees("restored-1 restored-2 restored-3 restored-4", 10*time.Second)
	for range 20 {
		o.heartbeat("restored-1", 1) // the store gets far
	}
	s.Restore()
	eventually(t, "it is said", 15*time.Second, func() bool { return n.logs.Count("nodes that it lacks stay peers") == 1 })
	o.remove("restored-2") // deleted indeed
	n.Sees("restored-1 restored-3 restored-4", 15*time.Second)
	eventually(t, "our annotations are put right", 15*time.Second, func() bool {
		return o.node("restored-0").Annotations[prefix+"backend-data"] == mac2
	})
	o.peer("restored-5", "10.244.4.0/24", "192.168.0.6") // has the subnet of restored-3
	n.Sees("restored-1 restored-5 restored-4", 10*time.Second)
	o.peer("restored-4", "10.244.7.0/24", "192.168.0.5") // is back, with another subnet
	n.Sees("restored-1 restored-5 restored-4", 10*time.Second)
	o.remove("restored-4")
	n.Sees("restored-1 restored-5", 10*time.Second)
}

// Those that never come back stay for a day.
func TestGhostsStayForADay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		count := 0
		p := &peers{own: "own", changed: func(s subnet.Set) { count = len(s.Leases) }}
		says := func(name, cidr, ip string) change {
			return change{name: name, node: &node{name: name, cidrs: []string{cidr}, notes: noted("kube-subnet-manager", "true", "backend-type", "vxlan", "backend-data", mac1, "public-ip", ip)}}
		}
		tell := func(want int, changes ...change) {
			t.Helper()
			if err := p.happened(context.Background(), changes); err != nil || count != want {
				t.Errorf("%d peers (%v), want %d", count, err, want)
			}
		}
		one, two := says("one", "10.244.1.0/24", "192.168.0.1"), says("two", "10.244.2.0/24", "192.168.0.2")
		tell(2, one, two)
		one.replaced = true
		tell(2, one, change{name: "two", replaced: true})
		one.replaced = false
		time.Sleep(ghostLife - time.Second)
		tell(2, one)
		time.Sleep(time.Second)
		tell(1, one)
	})
}
