package guard

import (
	"testing"

	"github.com/google/nftables/expr"
)

// Two matches may begin with one load.
func TestLoadIsNotOverwritten(t *testing.T) {
	l := load(source, false)
	first := lookup(l, "first")
	lookup(l, "second")
	if name := first[len(l)].(*expr.Lookup).SetName; name != "first" {
		t.Errorf("the set became %q", name)
	}
}
