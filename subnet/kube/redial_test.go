package kube

import (
	"testing"
	"time"

	"flannel/pkg/nettest"
	"flannel/subnet/kube/kubetest"
)

// Connections that lead nowhere without a word are noticed after 10 s; who knows it drops them, and is back at once.
func TestRedial(t *testing.T) {
	t.Parallel()
	s := kubetest.Start(t)
	o := outside{t, s}
	o.add("redial-1", "10.244.1.0/24")
	proxy := nettest.NewProxy(t, s.Addr(), 0)
	n := start(t, s, "redial-1", func(op *Options) { op.Kubeconfig, _ = s.Kubeconfig(s.Token("redial-1"), proxy.Addr()) })
	n.scope = "peer-"
	l := n.join(tenNet, "192.168.0.1", mac1)
	n.Run()
	n.Sees("", soon)
	proxy.BlackHole(true)
	proxy.BlackHole(false) // what was caught in it stays silent
	n.Redial()
	began := time.Now()
	l.V4.Data = []byte(mac2)
	if err := n.Publish(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	o.peer("peer-1", "10.244.2.0/24", "192.168.0.2")
	n.Sees("peer-1", soon)
	if took := time.Since(began); took > 8*time.Second {
		t.Errorf("back after %v", took)
	}
}
