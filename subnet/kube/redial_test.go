package kube

import (
	"context"
	"net/http"
	"testing"
	"time"

	"flannel/internal/test/kubetest"
	"flannel/internal/test/nettest"
)

// Connections that lead nowhere without a word are noticed by pings, which are far away here: whoever knows earlier drops
// them, and is back.
func TestRedial(t *testing.T) {
	t.Parallel()
	s := kubetest.Start(t)
	o := outside{t, s}
	o.add("redial-1", "10.244.1.0/24")
	proxy := nettest.NewProxy(t, s.Addr(), 0)
	n := start(t, s, "redial-1", func(op *Options) { op.Kubeconfig, _ = s.Kubeconfig(s.Token("redial-1"), proxy.Addr()) })
	n.scope = "peer-"
	rt := n.api.Transport()
	rt.HTTP2, rt.ResponseHeaderTimeout = &http.HTTP2Config{SendPingTimeout: time.Hour, PingTimeout: time.Hour}, 0
	l := n.join(tenNet, "192.168.0.1", mac1)
	n.Run()
	n.Sees("")
	proxy.BlackHole(true)
	proxy.BlackHole(false) // what was caught in it stays silent
	n.Redial()
	l.V4.Data = []byte(mac2)
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	if err := n.Publish(ctx, l); err != nil {
		t.Fatal(err)
	}
	o.peer("peer-1", "10.244.2.0/24", "192.168.0.2")
	n.Sees("peer-1")
}
