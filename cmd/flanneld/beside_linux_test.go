package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"flannel/internal/test/logtest"
	"flannel/pkg/probe"
	"flannel/pkg/status"
)

// A daemon without a lock, as flannel is, is found by its process.
func TestCleanupBesideFlannel(t *testing.T) {
	dir := t.TempDir()
	program, file := filepath.Join(dir, "flanneld"), filepath.Join(dir, "subnet.env")
	if err := os.Symlink("/bin/sleep", program); err != nil {
		t.Fatal(err)
	}
	says := func() (int, string) {
		code, out, _ := flanneldSays(t.Context(), "--subnet-file="+file, "handback", "--json")
		return code, out
	}
	flannel := exec.Command(program, "3600")
	flannel.Env = []string{"FLANNELD_SUBNET_FILE=" + file}
	if err := flannel.Start(); err != nil {
		t.Fatal(err)
	}
	defer flannel.Wait()         //nolint:errcheck // it is killed
	defer flannel.Process.Kill() //nolint:errcheck // it may have ended
	if code, out := says(); code != exitHeld || read[handbackAnswer](t, out).Problem == "" {
		t.Errorf("beside flannel it ends with %d and says %s", code, out)
	}
	if _, err := os.Stat(status.Lock(file)); err != nil {
		t.Errorf("it did not try the lock before: %v", err)
	}
}

// A daemon that may be in another network namespace counts only if it conflicts.
func TestBesideUnknown(t *testing.T) {
	all := []probe.Daemon{{PID: 7, Args: []string{"--subnet-file=/a"}, WhyNot: "denied"}}
	if err := conflicting("/a", false, all); err == nil || exitCode(err) != exitHeld || !logtest.Names(err.Error(), "denied", "root") {
		t.Errorf("the same subnet file: %v", err)
	}
	if err := conflicting("/b", false, all); err != nil {
		t.Errorf("another subnet file: %v", err)
	}
}

func TestConflicts(t *testing.T) {
	for _, c := range []struct {
		command, daemon string
		gone, want      bool
	}{
		{"", "", false, true}, {"", "", true, true}, {"a", "a", false, true},
		{"", "a", false, false}, {"", "a", true, true}, // all of everyone's is removed
		{"a", "", true, false}, {"a", "b", true, false},
	} {
		if got := conflicts(c.command, c.daemon, c.gone); got != c.want {
			t.Errorf("%+v: %t", c, got)
		}
	}
}
