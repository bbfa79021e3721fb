package main

import (
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"testing"
)

func TestInstance(t *testing.T) {
	if got := instanceOf("/run/flannel/../flannel/subnet.env"); got != "" {
		t.Errorf("the default file has the name %q", got)
	}
	if runtime.GOOS == "windows" {
		return
	}
	dir := t.TempDir()
	if err := os.Symlink(dir, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	b, same, other := instanceOf(filepath.Join(dir, "b.env")), instanceOf(filepath.Join(dir, "link", "b.env")), instanceOf(filepath.Join(dir, "c.env"))
	if b != same || b == other || !regexp.MustCompile("^[0-9a-f]{7}$").MatchString(b) {
		t.Errorf("%q, %q and %q", b, same, other)
	}
	if instanceOf(filepath.Join(dir, "link", "new", "b.env")) != instanceOf(filepath.Join(dir, "new", "b.env")) {
		t.Error("a missing directory has two names")
	}
	if instanceOf("/nowhere/at/all.env") == "" {
		t.Error("a missing directory has the name of the default file")
	}
}
