package daemon

import (
	"errors"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"flannel/internal/test/eventually"
	"flannel/internal/test/nstest"
	"flannel/subnet"
)

// While the subnet file cannot be written, a new pod would bring back the gateway of the former subnet.
func TestBridgeWaitsForTheFile(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		d, _, _ := newDaemon(t)
		_, l := startedNode(t, d)
		path := d.Settings.SubnetFile
		kernel := &leavingKernel{file: path}
		d.Dataplane, l.in.complete = kernel, false
		before := subnet.Env{V4Network: l.node.config.V4.Prefix, V4Subnet: netip.MustParsePrefix("10.5.9.0/24"), MTU: 1}
		if _, err := subnet.WriteEnv(path, before); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount(path, path, "", unix.MS_BIND, ""); err != nil { // nothing can be renamed to it
			t.Fatal(err)
		}
		if p := l.once(t, false); !p.failed.has(partSubnetFile) || len(kernel.found) > 0 {
			t.Errorf("failed are %v; the bridge is freed with %+v in the file", p.failed, kernel.found)
		}
		if err := unix.Unmount(path, 0); err != nil {
			t.Fatal(err)
		}
		if p := l.once(t, false); p.failed.has(partSubnetFile) || len(kernel.found) != 1 || kernel.found[0].V4Subnet != l.node.lease.V4.Subnet {
			t.Errorf("failed are %v; the bridge is freed with %+v in the file", p.failed, kernel.found)
		}
	})
}

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
		ended := make(chan error, 1)
		go func() { ended <- l.run(t.Context()) }()
		eventually.Nil(t, "written", func() error { _, err := os.Stat(d.Settings.SubnetFile); return err })
		eventually.Nil(t, "deleted", func() error { return os.RemoveAll(host) }) // a pass may write the file before it is empty
		changed <- struct{}{}
		if err := <-ended; !errors.Is(err, subnet.ErrDirGone) {
			env, readErr := subnet.ReadEnv(d.Settings.SubnetFile)
			t.Errorf("ended with %v; the file has %+v (%v)", err, env, readErr)
		}
	})
}
