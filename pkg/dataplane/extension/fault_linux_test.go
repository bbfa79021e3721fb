package extension

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"flannel/internal/test/nstest"
	"flannel/pkg/dataplane"
)

// Where no file can be created, in a directory that is read-only or full, commands run
// nevertheless, and it is logged once.
func TestCommandsWithoutFiles(t *testing.T) {
	for name, options := range map[string]struct {
		flags uintptr
		data  string
	}{
		"read-only": {unix.MS_RDONLY, ""},
		"full":      {0, "nr_inodes=1"},
	} {
		t.Run(name, func(t *testing.T) {
			nstest.Run(t, func(t *testing.T) {
				dir := t.TempDir()
				if err := unix.Mount("tmpfs", dir, "tmpfs", options.flags, options.data); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if err := unix.Unmount(dir, 0); err != nil {
						t.Error(err)
					}
				})
				if f, err := os.CreateTemp(dir, ""); err == nil {
					t.Fatalf("%s can be created", f.Name())
				}
				n := newNode(t)
				n.close()
				n.Dataplane = New(n.kernel, dataplane.Options{Log: n.log.Logger(), StateDir: dir})
				n.mustPass(peerPaths(2, "")...)
				n.mustPass(append(peerPaths(2, ""), peerPaths(3, "")...)...)
				if added := n.recorded(); len(added) != 3 { // PostStartup, too
					t.Errorf("ran %q", added)
				}
				if lines := n.log.With("level=WARN"); len(lines) != 1 || len(lines.With("cause="+causeFormer)) != 1 {
					t.Errorf("logged\n%v", lines)
				}
			})
		})
	}
}
