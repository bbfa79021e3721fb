package nettest

import (
	"path/filepath"
	"syscall"
	"testing"
)

// Signals to the group of a server reach neither its test nor other tests.
func TestOwnProcessGroup(t *testing.T) {
	t.Parallel()
	p := Run(t, filepath.Join(t.TempDir(), "log"), "sleep", "600")
	if group, err := syscall.Getpgid(p.PID()); err != nil || group != p.PID() {
		t.Errorf("process %d is in group %d (%v)", p.PID(), group, err)
	}
	p.Pause()
	p.Resume()
	p.Stop()
}
