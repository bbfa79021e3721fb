package instance

import (
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"testing"
)

func TestOf(t *testing.T) {
	if got := Of("/run/flannel/../flannel/subnet.env"); got != "" {
		t.Errorf("the default file has the name %q", got)
	}
	if runtime.GOOS == "windows" {
		return
	}
	dir := t.TempDir()
	if err := os.Symlink(dir, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	b, same, other := Of(filepath.Join(dir, "b.env")), Of(filepath.Join(dir, "link", "b.env")), Of(filepath.Join(dir, "c.env"))
	if b != same || b == other || !regexp.MustCompile("^[0-9a-f]{7}$").MatchString(b) {
		t.Errorf("%q, %q and %q", b, same, other)
	}
	if Of(filepath.Join(dir, "link", "new", "b.env")) != Of(filepath.Join(dir, "new", "b.env")) {
		t.Error("a missing directory has two names")
	}
	if Of("/nowhere/at/all.env") == "" {
		t.Error("a missing directory has the name of the default file")
	}
}
