package etcd

import (
	"testing"
	"time"

	"flannel/pkg/nettest"
	"flannel/subnet/etcd/etcdtest"
)

// Connections that lead nowhere without a word are noticed after 13 s; who knows it drops them, and is back at once.
func TestRedial(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t)
	st := outside(t, srv)
	proxy := nettest.NewProxy(t, srv.Addr(), 0)
	n := start(t, "http://"+proxy.Addr(), nil)
	l := n.publish(outOfTheWay("192.168.64.99"), mac1)
	n.Run()
	n.Sees("", soon)
	proxy.BlackHole(true)
	proxy.BlackHole(false) // what was caught in it stays silent
	n.Redial()
	began := time.Now()
	l.V4.PublicIP = addr("192.168.64.98")
	if err := n.Publish(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	st.put("subnets/10.5.2.0-24", peer("192.168.64.2"))
	n.Sees("10.5.2.0-24", soon)
	if took := time.Since(began); took > 8*time.Second {
		t.Errorf("back after %v", took)
	}
	n.notLost()
}

// A connection of TLS is dropped, too: the watches are opened anew.
func TestRedialTLS(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.TLS())
	n := start(t, srv.Endpoint(), func(o *Options) { o.CAFile = srv.File("ca.crt") })
	n.publish(outOfTheWay("192.168.64.99"), mac1)
	n.Run()
	n.Sees("", soon)
	eventually(t, "nothing is asked any more", soon, func() bool {
		before := n.wire.calls.Load()
		time.Sleep(300 * time.Millisecond)
		return n.wire.calls.Load() == before
	})
	before := n.wire.calls.Load()
	n.Redial()
	eventually(t, "both watches are opened anew", soon, func() bool { return n.wire.calls.Load() >= before+2 })
	outside(t, srv).put("subnets/10.5.2.0-24", peer("192.168.64.2"))
	n.Sees("10.5.2.0-24", soon)
	n.notLost()
}
