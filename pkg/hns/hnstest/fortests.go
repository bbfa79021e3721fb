package hnstest

import (
	"errors"
	"net"
	"testing"
)

// NewFor is a machine in memory, as New makes it, until the test ends.
func NewFor(t testing.TB) *Machine {
	m := New()
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error("close the machine:", err)
		}
	})
	return m
}

// Listen lets other programs reach the machine at addr until the test ends.
func (m *Machine) Listen(t testing.TB) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- m.Serve(l) }()
	t.Cleanup(func() {
		if err := errors.Join(l.Close(), <-done); err != nil {
			t.Error("serve the machine:", err)
		}
	})
	return l.Addr().String()
}
