package kube

import (
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"flannel/internal/test/eventually"
	"flannel/internal/test/kubetest"
	"flannel/subnet"
)

// A store that is restored from a backup lacks the Nodes that came after it: nobody deleted them, so they stay peers.
// What is deleted afterwards is deleted, and what is said afterwards counts. A Node that had no podCIDR yet may get
// another one, under the same UID. The restored store is behind the former one, or ahead of it; then Hold does not see
// that it was restored if kubelet writes our Node first.
func TestRestored(t *testing.T) {
	t.Parallel()
	t.Run("behind", func(t *testing.T) { restored(t, (*kubetest.Server).Restore, false) })
	t.Run("ahead", func(t *testing.T) { restored(t, (*kubetest.Server).RestoreBumped, false) })
	t.Run("ahead, kubelet first", func(t *testing.T) { restored(t, (*kubetest.Server).RestoreBumped, true) })
}

func restored(t *testing.T, restore func(*kubetest.Server), kubeletFirst bool) {
	t.Parallel()
	s := kubetest.Start(t)
	o := outside{t, s}
	o.add("restored-0", "10.244.1.0/24")
	o.peer("restored-1", "10.244.2.0/24", "192.168.0.2")
	o.peer("restored-2", "10.244.3.0/24", "192.168.0.3")
	o.add("restored-6") // without a podCIDR
	var away atomic.Bool
	written := make(chan struct{})
	n := startWith(t, s, "restored-0", nil, func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		if away.Load() && strings.Contains(r.URL.RawQuery, "fieldSelector") { // of Hold
			select {
			case <-written:
			case <-r.Context().Done():
				return nil, r.Context().Err()
			}
		}
		return next.RoundTrip(r)
	})
	l := n.join(tenNet, "192.168.0.1", mac1)
	s.Backup()
	for name, at := range map[string][2]string{"restored-3": {"10.244.4.0/24", "192.168.0.4"}, "restored-4": {"10.244.5.0/24", "192.168.0.5"}} {
		o.peer(name, at[0], at[1])
	}
	l.V4.Data = []byte(mac2)
	if err := n.Publish(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	described := []string{"kube-subnet-manager", "true", "backend-type", "vxlan", "backend-data", mac1, "public-ip", "192.168.0.7"}
	o.assign("restored-6", "10.244.8.0/24")
	o.annotate("restored-6", described...)
	n.Run()
	n.Sees("restored-1 restored-2 restored-3 restored-4 restored-6")
	n.Report(subnet.Report{})
	const up = corev1.ConditionFalse
	eventually.True(t, "our Node has the condition", func() bool { return o.condition("restored-0").Status == up })
	for i := range 20 {
		o.heartbeat("restored-0", i) // the store gets far
	}
	eventually.True(t, "Hold has got as far", func() bool {
		_, version := n.ownUID()
		return version == o.node("restored-0").ResourceVersion
	})
	away.Store(kubeletFirst)
	restore(s)
	if kubeletFirst {
		o.heartbeat("restored-0", 20)
		close(written)
	}
	eventually.True(t, "it is said", func() bool { return n.logs.Count("cause="+causeStoreChanged) == 1 })
	o.remove("restored-2") // deleted indeed
	n.Sees("restored-1 restored-3 restored-4 restored-6")
	eventually.True(t, "our annotations are put right", func() bool {
		return o.node("restored-0").Annotations[prefix+"backend-data"] == mac2
	})
	eventually.True(t, "our condition is back", func() bool { return o.condition("restored-0").Status == up })
	o.assign("restored-6", "10.244.9.0/24")
	o.annotate("restored-6", described...)
	eventually.True(t, "the other podCIDR is seen", func() bool {
		set, _ := n.Last()
		return slices.ContainsFunc(set.Leases, func(l *subnet.Lease) bool { return l.V4.Subnet.String() == "10.244.9.0/24" })
	})
	o.peer("restored-5", "10.244.4.0/24", "192.168.0.6") // has the subnet of restored-3
	n.Sees("restored-1 restored-5 restored-4 restored-6")
	o.peer("restored-4", "10.244.7.0/24", "192.168.0.5") // is back, with another subnet
	n.Sees("restored-1 restored-5 restored-4 restored-6")
	o.remove("restored-4")
	n.Sees("restored-1 restored-5 restored-6")
}
