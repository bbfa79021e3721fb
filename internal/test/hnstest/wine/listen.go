package wine

import (
	"errors"
	"net"
	"testing"

	"flannel/internal/test/hnstest"
)

// Listen serves the machine on a TCP address, until the test ends, for programs
// in Wine and for Dial.
func Listen(t testing.TB, m *hnstest.Machine) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{Machine: m}
	done := make(chan error)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		if err := errors.Join(l.Close(), <-done); err != nil {
			t.Error("serve the machine:", err)
		}
	})
	return l.Addr().String()
}
