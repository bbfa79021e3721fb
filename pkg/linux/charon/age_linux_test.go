package charon

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"flannel/internal/test/nstest"
)

// The age of a process is right where /proc/uptime is that of a container (lxcfs).
func TestAge(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		uptime := filepath.Join(t.TempDir(), "uptime")
		if err := os.WriteFile(uptime, []byte("1.00 1.00\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount(uptime, "/proc/uptime", "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		if runs, err := age(os.Getpid()); err != nil || runs < 0 || runs > time.Hour {
			t.Errorf("this process has been running for %v, %v", runs, err)
		}
	})
}
