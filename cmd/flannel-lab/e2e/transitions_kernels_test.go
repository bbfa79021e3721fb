//go:build kernels

package e2e

import "testing"

// TestModulesAfterEveryOther changes the backend of running nodes between those that need
// modules that not every kernel has, and all others.
func TestModulesAfterEveryOther(t *testing.T) {
	t.Parallel()
	changeAlong(t, amongAll(append([]string{`{"Type":"ipip"}`, ipsec}, alike...), 2))
}
