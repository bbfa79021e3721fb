package plugin

import (
	"net"
	"net/http"
	"os"
	"testing"

	"flannel/pkg/status"
)

// STATUS depends on what flanneld answers at its socket. (Wine has no unix sockets.)
func TestStatusOfTheDaemon(t *testing.T) {
	n := newNode(t)
	expect := n.expectStatus
	daemon := &status.Board{}
	serve(t, status.Socket(n.path("subnet.env")), status.Health(daemon, http.NotFoundHandler()))
	daemon.Waiting("waiting for etcd")
	expect("flanneld was never ready", 51, "flanneld is not ready: waiting for etcd")
	daemon.EndPass(nil)
	expect("flanneld is ready", 0, "")
	daemon.Waiting("waiting for etcd")
	expect("flanneld was ready before", 0, "")
	_ = os.Remove(n.path("subnet.env"))
	expect("no subnet file, flanneld was ready before", 50, "subnet.env is missing")
	_ = os.Remove(status.Socket(n.path("subnet.env")))
	expect("no subnet file, no flanneld", 50, "flanneld does not answer")
	daemon = &status.Board{}
	daemon.Add(status.OfStore, func(r *status.Report) { r.Outage = "no route to etcd" })
	serve(t, status.Socket(n.path("subnet.env")), status.Health(daemon, http.NotFoundHandler()))
	expect("no subnet file, flanneld is starting", 50, "starting; no route to etcd")
	_ = os.Remove(status.Socket(n.path("subnet.env")))
	n.write("subnet.env", envText)
	serve(t, status.Socket(n.path("subnet.env")), http.NotFoundHandler())
	expect("flanneld without /startupz", 0, "")
}

// serve answers at a socket until the test ends or the socket is removed.
func serve(t *testing.T, path string, h http.Handler) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: h}
	go server.Serve(l) //nolint:errcheck // it returns when the test ends
	t.Cleanup(func() { _ = server.Close() })
}

// A flanneld that hangs neither delays STATUS nor makes it fail.
func TestStatusOfAHungDaemon(t *testing.T) {
	n := newNode(t)
	hung := make(chan struct{})
	defer close(hung)
	serve(t, status.Socket(n.path("subnet.env")), http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hung }))
	if s := n.run("STATUS", "", ""); s.err != nil {
		t.Errorf("%+v", s.err)
	}
}
