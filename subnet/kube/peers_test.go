package kube

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flannel/internal/test/eventually"
	"flannel/internal/test/logtest"
	"flannel/subnet"
)

// garbage leaves out its own node only, with the reason.
func garbage(t *testing.T, o outside) {
	o.add("garbage-0", "10.244.20.0/24")
	n := start(t, o.Server, "garbage-0", nil)
	n.join(tenNet, "192.168.0.20", mac1)
	o.peer("garbage-1", "10.244.21.0/24", "192.168.0.21")
	o.peer("garbage-2", "10.244.22.0/24", "192.168.0.22")
	n.Run()
	n.Sees("garbage-1 garbage-2")
	before, _ := n.Last()
	o.annotate("garbage-2", "backend-data", "{")
	n.Sees("garbage-1 [garbage-2]")
	o.annotate("garbage-2", "backend-data", mac2, "public-ip", "somewhere")
	o.peer("garbage-3", "", "192.168.0.23")
	n.Sees("garbage-1 [garbage-2] [garbage-3]")
	after, _ := n.Last()
	for _, r := range after.Rejects {
		if r.Name == "garbage-2" && !logtest.Names(r.Reason, "public-ip", `"somewhere"`, "IPv4") || r.Name == "garbage-3" && !logtest.Names(r.Reason, "podCIDR") {
			t.Errorf("%+v", r)
		}
	}
	for i := range before.Leases {
		if before.Leases[i].Name == "garbage-1" && !containsPointer(after.Leases, before.Leases[i]) {
			t.Error("a peer that did not change has another pointer")
		}
	}
	o.assign("garbage-3", "10.244.23.0/24") // which the watch does not show
	n.Sees("garbage-1 garbage-3 [garbage-2]")
	o.annotate("garbage-2", "public-ip", "192.168.0.22")
	n.Sees("garbage-1 garbage-2 garbage-3")
	o.annotate("garbage-1", "kube-subnet-manager", "")
	n.Sees("garbage-2 garbage-3")
}

func containsPointer(all []*subnet.Lease, one *subnet.Lease) bool {
	for _, l := range all {
		if l == one {
			return true
		}
	}
	return false
}

// unmanaged: Nodes without our annotations cost no request, and are peers once they have them.
func unmanaged(t *testing.T, o outside) {
	o.add("unmanaged-0", "10.244.30.0/24")
	n := start(t, o.Server, "unmanaged-0", nil)
	n.join(tenNet, "192.168.0.30", mac1)
	n.Run()
	n.Sees("")
	o.add("unmanaged-1", "10.244.31.0/24")
	o.heartbeat("unmanaged-1", 1)
	o.add("unmanaged-2", "10.244.32.0/24")
	o.annotate("unmanaged-2", "kube-subnet-manager", "true", "backend-type", "vxlan", "backend-data", mac1, "public-ip", "192.168.0.32")
	n.Sees("unmanaged-2")
	if gets := n.traffic.count("GET /api/v1/nodes/unmanaged-1"); gets != 0 {
		t.Errorf("asked %d times for a node that is no peer", gets)
	}
	if gets := n.traffic.count("GET /api/v1/nodes/unmanaged-2"); gets != 1 {
		t.Errorf("asked %d times for a new node", gets)
	}
	// Of a node that is no peer, only that it runs Windows counts: kubelet labels it before any flanneld is there. Of
	// several it is the first by name, and other tests have such nodes, too.
	const first = "a-windows-node"
	known := func(want bool) {
		t.Helper()
		eventually.True(t, fmt.Sprintf("known to run Windows: %t", want), func() bool { s, _ := n.Last(); return (s.Windows == first) == want })
	}
	known(false)
	o.add(first)
	raw := []byte(`{"metadata":{"labels":{"kubernetes.io/os":"windows"}}}`)
	if _, err := o.Client.CoreV1().Nodes().Patch(t.Context(), first, types.StrategicMergePatchType, raw, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	known(true)
	n.Sees("unmanaged-2")
	if gets := n.traffic.count("GET /api/v1/nodes/" + first); gets != 0 {
		t.Errorf("asked %d times for a Windows node that is no peer", gets)
	}
	o.remove(first)
	known(false)
}
