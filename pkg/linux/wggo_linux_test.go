package linux

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"flannel/internal/test/nstest"
)

// The error of a wireguard-go that fails does not contain when it failed: an error that
// is the same as before is not logged again.
func TestWireGuardGoFails(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		run(t, "ip link add taken type bridge")
		err := startWireGuardGo("taken")
		if err == nil {
			t.Fatal("wireguard-go has made a device whose name is taken")
		}
		t.Log(err)
		if clock := regexp.MustCompile(`\d:\d\d:\d\d`); clock.MatchString(err.Error()) {
			t.Errorf("the error contains a time: %v", err)
		}
	})
}

// A wireguard-go that cannot start is not started again by each pass. A failed start makes and deletes a device, of which
// the kernel notifies, so that passes follow one another without a pause.
func TestWireGuardGoIsPaced(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		starts := filepath.Join(dir, "starts")
		program := "#!/bin/sh\necho $1 >>" + starts + "\nexit 1\n"
		if err := os.WriteFile(filepath.Join(dir, userspaceWireGuard), []byte(program), 0o755); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", dir)
		s := &wgStore{}
		began := time.Now()
		for range 20 {
			if err := s.startUserspace("one"); err == nil {
				t.Fatal("started")
			}
		}
		if err := s.startUserspace("another"); err == nil {
			t.Fatal("started")
		}
		took := time.Since(began)
		got, err := os.ReadFile(starts)
		if err != nil {
			t.Fatal(err)
		}
		// The pauses are 1 s, 2 s, 4 s, …; on a slow machine some of them may be over.
		if n := strings.Count(string(got), "one"); n > 1+int(took/time.Second) || strings.Count(string(got), "another") != 1 {
			t.Errorf("starts within %v:\n%s", took, got)
		}
	})
}
