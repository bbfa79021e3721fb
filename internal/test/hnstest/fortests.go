package hnstest

import "testing"

// NewFor returns a machine in memory, as New does, and closes it when the test
// ends.
func NewFor(t testing.TB) *Machine {
	m := New()
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error("close the simulated machine:", err)
		}
	})
	return m
}
