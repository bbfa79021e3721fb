package cniplugin

import (
	"errors"
	"net"
	"net/http"
	"os"
	"testing"

	"flannel/pkg/health"
	"flannel/pkg/status"
)

// What the daemon says at its socket. (Wine has no unix sockets.)
func TestStatusOfTheDaemon(t *testing.T) {
	n := newNode(t)
	expect := n.expectStatus
	var daemon health.Status
	serve(t, status.Socket(n.path("subnet.env")), health.Handler(&daemon, http.NotFoundHandler()))
	daemon.Waiting("waiting for etcd")
	expect("the daemon was never ready", 51, "flanneld is not ready: waiting for etcd")
	daemon.EndPass(nil)
	expect("it is ready", 0, "")
	daemon.Waiting("waiting for etcd")
	expect("it was ready", 0, "")
	_ = os.Remove(n.path("subnet.env"))
	expect("no subnet file, and a daemon that was ready", 50, "subnet.env is missing")
	_ = os.Remove(status.Socket(n.path("subnet.env")))
	expect("no subnet file", 50, "flanneld does not answer")
	daemon = health.Status{}
	daemon.Explain(func() error { return errors.New("no route to etcd") })
	serve(t, status.Socket(n.path("subnet.env")), health.Handler(&daemon, http.NotFoundHandler()))
	expect("no subnet file, and a daemon that starts", 50, "starting; no route to etcd")
	_ = os.Remove(status.Socket(n.path("subnet.env")))
	n.write("subnet.env", envText)
	serve(t, status.Socket(n.path("subnet.env")), http.NotFoundHandler())
	expect("a daemon of before", 0, "")
}

// serve answers at a socket until the test ends, or the socket is removed.
func serve(t *testing.T, path string, h http.Handler) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: h}
	go server.Serve(l) //nolint:errcheck // it ends with the test
	t.Cleanup(func() { _ = server.Close() })
}

// A daemon that hangs does not hold up kubelet, nor does it make a node unready that has a network.
func TestStatusOfAHungDaemon(t *testing.T) {
	n := newNode(t)
	hung := make(chan struct{})
	defer close(hung)
	serve(t, status.Socket(n.path("subnet.env")), http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hung }))
	if s := n.run("STATUS", "", ""); s.err != nil {
		t.Errorf("%+v", s.err)
	}
}
