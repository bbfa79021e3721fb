package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"flannel/internal/test/logtest"
	"flannel/pkg/daemon/instance"
	"flannel/pkg/linux"
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

// A flanneld with another subnet file, whose nexthop objects this one would delete, is named in the log.
func TestSameNexthopIDs(t *testing.T) {
	dir := t.TempDir()
	own, same, apart := filepath.Join(dir, "subnet.env"), "", ""
	for i := 0; same == "" || apart == ""; i++ {
		file := filepath.Join(dir, fmt.Sprint(i))
		if linux.SameNexthopIDs(instance.Of(own), instance.Of(file)) {
			same = file
		} else {
			apart = file
		}
	}
	program := filepath.Join(dir, "flanneld")
	if err := os.Symlink("/bin/sleep", program); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{same, apart, own} {
		other := exec.Command(program, "3600")
		other.Env = []string{"FLANNELD_SUBNET_FILE=" + file}
		if err := other.Start(); err != nil {
			t.Fatal(err)
		}
		defer other.Wait()         //nolint:errcheck // it is killed
		defer other.Process.Kill() //nolint:errcheck // it may have ended
	}
	var log logtest.Log
	var o options
	o.SubnetFile = own
	o.warnOfSameIDs(log.Logger())
	if log.Count("cause="+causeSameIDs, "subnet_file="+same) != 1 || log.Count() != 1 {
		t.Errorf("it logs\n%s", &log)
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
