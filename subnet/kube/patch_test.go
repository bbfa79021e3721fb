package kube

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"flannel/internal/test/eventually"
	"flannel/internal/test/kubetest"
)

// The API server rejects the patch that restores our annotations, because the annotations of somebody else leave no room.
// The next change of the Node is restored after a pause.
func TestPatchRejected(t *testing.T) {
	t.Parallel()
	o := outside{t, kubetest.Start(t)}
	o.add("rejected-1", "10.244.1.0/24")
	n := start(t, o.Server, "rejected-1", func(op *Options) { op.SetCondition = false })
	data := `{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44","x":"` + strings.Repeat("x", 10_000) + `"}`
	n.join(tenNet, "192.168.0.1", data)
	n.Run()
	n.Sees("")
	const limit = 256 << 10 // of a Node's annotations
	o.annotate("rejected-1", "backend-data", "", "other", strings.Repeat("x", limit-5_000))
	eventually.True(t, "the patch is rejected", func() bool { return n.logs.Count("level=WARN") >= 2 })
	eventually.True(t, "the next change begins a round, with a pause", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		conflict := n.own.conflict // a copy
		_, round := conflict.Changed(time.Now(), rand.N)
		return round > 0
	})
	o.annotate("rejected-1", "other", "")
	eventually.True(t, "restored", func() bool { return o.node("rejected-1").Annotations[prefix+"backend-data"] == data })
}
