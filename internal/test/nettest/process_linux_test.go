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
	pid := p.cmd.Process.Pid
	if group, err := syscall.Getpgid(pid); err != nil || group != pid {
		t.Errorf("process %d is in group %d (%v)", pid, group, err)
	}
	p.Pause()
	p.Resume()
	p.Stop()
}
