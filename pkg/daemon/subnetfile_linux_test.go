package daemon

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"flannel/internal/test/eventually"
	"flannel/internal/test/nstest"
	"flannel/pkg/file"
	"flannel/subnet"
)

// In a container, a directory that the host deletes cannot be written to again, so the daemon ends.
func TestEndsWithoutDirectory(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		d, _, _ := newDaemon(t)
		_, l := startedNode(t, d)
		host, container := t.TempDir(), t.TempDir()
		if err := unix.Mount(host, container, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(container, unix.MNT_DETACH) })
		changed := make(chan struct{}, 1)
		d.Settings.SubnetFile, d.Settings.CompareAll, d.EnvFile = container+"/subnet.env", time.Hour, changed
		l = d.newLoop(l.node, l.in)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		ended := make(chan error, 1)
		go func() { ended <- l.run(ctx) }()
		eventually.Nil(t, "written", func() error { _, err := os.Stat(d.Settings.SubnetFile); return err })
		eventually.Nil(t, "deleted", func() error { return os.RemoveAll(host) }) // a pass may write the file before it is empty
		changed <- struct{}{}
		if err := <-ended; !errors.Is(err, file.ErrDirGone) {
			env, readErr := subnet.ReadEnv(d.Settings.SubnetFile)
			t.Errorf("ended with %v; the file has %+v (%v)", err, env, readErr)
		}
	})
}
