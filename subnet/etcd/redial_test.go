package etcd

import (
	"context"
	"testing"
	"time"

	"flannel/internal/test/etcdtest"
	"flannel/internal/test/eventually"
	"flannel/internal/test/nettest"
)

// Connections that lead nowhere without a word are noticed by their keepalives, which are far away here: whoever knows
// earlier drops them, and is back.
func TestRedial(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t)
	st := outside(t, srv)
	proxy := nettest.NewProxy(t, srv.Addr(), 0)
	n := start(t, "http://"+proxy.Addr(), func(o *Options) { o.keepAlive = time.Hour })
	l := n.publish(outOfTheWay("192.168.64.99"), mac1)
	n.Run()
	n.Sees("")
	proxy.BlackHole(true)
	proxy.BlackHole(false) // what was caught in it stays silent
	n.Redial()
	l.V4.PublicIP = addr("192.168.64.98")
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	if err := n.Publish(ctx, l); err != nil {
		t.Fatal(err)
	}
	st.put("subnets/10.5.2.0-24", peer("192.168.64.2"))
	n.Sees("10.5.2.0-24")
	n.notLost()
}

// A connection of TLS is dropped, too: the watches are opened anew.
func TestRedialTLS(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.TLS())
	n := start(t, srv.Endpoint(), func(o *Options) { o.CAFile = srv.File("ca.crt") })
	n.publish(outOfTheWay("192.168.64.99"), mac1)
	n.Run()
	n.Sees("")
	eventually.True(t, "nothing is asked any more", func() bool {
		before := n.tracker.calls.Load()
		time.Sleep(300 * time.Millisecond) // in which nothing may be asked
		return n.tracker.calls.Load() == before
	})
	before := n.tracker.calls.Load()
	n.Redial()
	eventually.True(t, "both watches are opened anew", func() bool { return n.tracker.calls.Load() >= before+2 })
	outside(t, srv).put("subnets/10.5.2.0-24", peer("192.168.64.2"))
	n.Sees("10.5.2.0-24")
	n.notLost()
}
