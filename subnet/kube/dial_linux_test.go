package kube

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// fullListener returns the address of a listener that drops further connections: its queue has room for one, and nobody
// accepts it.
func fullListener(t *testing.T) string {
	t.Helper()
	l, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(l) })
	if err := unix.Bind(l, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(l, 0); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(l)
	if err != nil {
		t.Fatal(err)
	}
	addr := (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: name.(*unix.SockaddrInet4).Port}).String()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return addr
}

// A server that does not answer is given up after dialTimeout, also with credentials from a program, for which client-go
// has a dialer of its own.
func TestDialTimeout(t *testing.T) {
	t.Parallel()
	addr := fullListener(t)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	const text = `apiVersion: v1
kind: Config
users: [{name: u, user: {exec: {command: "true", apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never}}}]
contexts: [{name: x, context: {user: u}}]
current-context: x
`
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]Options{
		"plain":   {APIURL: "https://" + addr},
		"program": {APIURL: "https://" + addr, Kubeconfig: kubeconfig},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, err := newClient(o)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 3*dialTimeout) // less than the 30 s of client-go's dialer
			defer cancel()
			if conn, err := c.transport.current().DialContext(ctx, "tcp", addr); err == nil {
				t.Error("connected to", conn.RemoteAddr())
			} else if ctx.Err() != nil {
				t.Error(err)
			}
		})
	}
}
