package kube

import (
	"testing"

	"flannel/internal/test/eventually"
	"flannel/internal/test/kubetest"
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
	n.Sees("restored-1 restored-2 restored-3 restored-4")
	for range 20 {
		o.heartbeat("restored-1", 1) // the store gets far
	}
	s.Restore()
	eventually.True(t, "it is said", func() bool { return n.logs.Count("cause="+causeStoreChanged) == 1 })
	o.remove("restored-2") // deleted indeed
	n.Sees("restored-1 restored-3 restored-4")
	eventually.True(t, "our annotations are put right", func() bool {
		return o.node("restored-0").Annotations[prefix+"backend-data"] == mac2
	})
	o.peer("restored-5", "10.244.4.0/24", "192.168.0.6") // has the subnet of restored-3
	n.Sees("restored-1 restored-5 restored-4")
	o.peer("restored-4", "10.244.7.0/24", "192.168.0.5") // is back, with another subnet
	n.Sees("restored-1 restored-5 restored-4")
	o.remove("restored-4")
	n.Sees("restored-1 restored-5")
}
