package etcd

import (
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"flannel/internal/test/etcdtest"
)

// A watch that was lost is opened anew although etcd needs longer for each answer than a first attempt waits.
func TestSlowAnswers(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t)
	var slow atomic.Bool
	n := start(t, "http://"+delayAnswers(t, srv, &slow, requestTimeout+time.Second), nil)
	n.publish(outOfTheWay("192.168.64.99"), mac1)
	n.Run()
	n.Sees("")
	slow.Store(true)
	n.Redial()
	outside(t, srv).put("subnets/10.5.2.0-24", peer("192.168.64.2"))
	n.Sees("10.5.2.0-24")
	n.notLost()
}

// delayAnswers runs a proxy before srv that passes on the beginning of each answer later while slow is set, unlike those to
// pings. It returns its address.
func delayAnswers(t *testing.T, srv *etcdtest.Server, slow *atomic.Bool, delay time.Duration) (addr string) {
	t.Helper()
	var plain http.Protocols
	plain.SetUnencryptedHTTP2(true)
	to, err := url.Parse(srv.Endpoint())
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.Transport = &http.Transport{Protocols: &plain}
	proxy.FlushInterval = -1                                   // at once
	proxy.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0) // requests end in the middle
	proxy.ModifyResponse = func(*http.Response) error {
		if slow.Load() {
			time.Sleep(delay) // the slow server
		}
		return nil
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: proxy, Protocols: &plain}
	go server.Serve(l) //nolint:errcheck // it ends with the test
	t.Cleanup(func() { server.Close() })
	return l.Addr().String()
}
