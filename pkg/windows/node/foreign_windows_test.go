package node

import (
	"errors"
	"os"
	"testing"

	"flannel/internal/test/filetest"
	"flannel/pkg/file"
)

// What somebody else published is not used: it names the directory in which
// reservations are released.
func TestForeignVIP(t *testing.T) {
	n := newNode(t)
	n.ensure("10.244.1.0/24")
	want := n.holds()
	filetest.GiveAway(t, n.File)
	v, err := ReadVIP(n.File)
	if _, refused := errors.AsType[*file.UntrustedError](err); !refused || v != (VIP{}) {
		t.Errorf("a foreign file: %+v, %v", v, err)
	}
	n.ensure("10.244.1.0/24")
	n.check("after a foreign file", want)
	if _, err := os.Stat(n.File + ".refused"); err != nil {
		t.Error(err)
	}
}
