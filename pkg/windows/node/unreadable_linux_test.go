package node

import (
	"os"
	"path/filepath"
	"testing"

	"flannel/subnet"
)

// The file with the source VIP names host-local's directory. While the file cannot be read, nothing is reserved in another
// one, and nothing is published. Root can read every file, so that a link to itself takes the place of one that cannot be read.
func TestUnreadableVIP(t *testing.T) {
	n := newNode(t)
	n.ensure("10.244.1.0/24")
	want := n.holds()
	subnetFile, aside := filepath.Join(t.TempDir(), "subnet.env"), n.File+".aside"
	if _, err := subnet.WriteEnv(subnetFile, subnet.Env{V4Network: pfx("10.244.0.0/16"), V4Subnet: pfx("10.244.1.0/24"), MTU: 1450}); err != nil {
		t.Fatal(err)
	}
	other := n.VIPKeeper
	other.DataDir = t.TempDir()
	if err := os.Rename(n.File, aside); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(n.File, n.File); err != nil {
		t.Fatal(err)
	}
	if err := restoreVIP(t.Context(), other, subnetFile); err == nil {
		t.Error("the daemon restored it")
	}
	if _, err := n.Ensure(t.Context(), pfx("10.244.1.0/24")); err == nil {
		t.Error("source-vip published another one")
	}
	if err := os.Rename(aside, n.File); err != nil {
		t.Fatal(err)
	}
	n.check("afterwards", want)
	if err := restoreVIP(t.Context(), other, subnetFile); err != nil {
		t.Error(err)
	}
	n.check("when it can be read", want)
	if left, err := os.ReadDir(other.DataDir); err != nil || len(left) > 0 {
		t.Errorf("in the other directory there are %v, %v", left, err)
	}
}

// Reservations may be in host-local's directory although none is published: cleanup reports that it cannot look.
func TestReleaseUnreadable(t *testing.T) {
	n := newNode(t)
	if err := os.WriteFile(n.DataDir, nil, 0o600); err != nil { // it is no directory
		t.Fatal(err)
	}
	if _, err := n.Release(t.Context(), false); err == nil {
		t.Error("no error")
	}
}
