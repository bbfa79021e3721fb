//go:build kernels

package e2e

import (
	"fmt"
	"testing"
)

// TestModulesAfterEveryOther changes the backend of running nodes between those that need
// modules that not every kernel has, and all others. make test runs one part of it.
func TestModulesAfterEveryOther(t *testing.T) {
	t.Parallel()
	for part := range modulesParts {
		t.Run(fmt.Sprintf("part %d of %d", part+1, modulesParts), func(t *testing.T) {
			changeAlong(t, modulesWay(part, `{"Type":"ipip"}`, ipsec))
		})
	}
}
