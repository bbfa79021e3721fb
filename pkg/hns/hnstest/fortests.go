package hnstest

import "testing"

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
