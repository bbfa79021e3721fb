package file

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"flannel/internal/test/nstest"
)

// A repeated error has the same text: callers log it again only if it has changed.
func TestReplaceErrorIsStable(t *testing.T) {
	dir := t.TempDir()
	for name, path := range map[string]string{"create": filepath.Join(dir, "gone", "subnet.env"), "rename": dir} {
		first, second := Replace(path, nil), Replace(path, nil)
		if first == nil || second == nil || first.Error() != second.Error() || !strings.Contains(first.Error(), path+":") {
			t.Errorf("%s: %v, and then %v", name, first, second)
		}
	}
	if err := Replace(filepath.Join(dir, "gone", "subnet.env"), nil); !os.IsNotExist(err) {
		t.Errorf("%v", err)
	}
}

// The host deletes a directory that is mounted into a container. Any other directory is made anew.
func TestDeletedDirectory(t *testing.T) {
	testDeletedDirectory(t, func(t *testing.T) string { return t.TempDir() })
}

// As TestDeletedDirectory, on a host whose root is an overlay that has the directory in both layers, as that of a kind node.
func TestDeletedDirectoryOfOverlay(t *testing.T) {
	testDeletedDirectory(t, func(t *testing.T) string {
		dir, root := t.TempDir(), t.TempDir()
		// Not every file system can be an upper layer.
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
		lower, upper, work := filepath.Join(dir, "lower"), filepath.Join(dir, "upper"), filepath.Join(dir, "work")
		err := errors.Join(os.MkdirAll(filepath.Join(lower, "host"), 0o755), os.MkdirAll(filepath.Join(upper, "host"), 0o755), os.Mkdir(work, 0o755))
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("overlay", root, "overlay", 0, "lowerdir="+lower+",upperdir="+upper+",workdir="+work); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(root, unix.MNT_DETACH) })
		return filepath.Join(root, "host")
	})
}

func testDeletedDirectory(t *testing.T, makeHost func(*testing.T) string) {
	nstest.Run(t, func(t *testing.T) {
		host, container := makeHost(t), t.TempDir()
		mount := func() error { return unix.Mount(host, container, "", unix.MS_BIND, "") }
		unmount := func() error { return unix.Unmount(container, 0) }
		if err := mount(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unmount() })
		for _, step := range []struct {
			name          string
			change        func() error
			other, inside error // of the same directory on the host, and in the container
		}{
			{"before", func() error { return nil }, nil, nil},
			{"deleted", func() error { return os.RemoveAll(host) }, nil, ErrDirGone}, // writing to the other one makes it anew
			{"made anew", func() error { return nil }, nil, ErrDirGone},
			{"mounted again", func() error { return errors.Join(unmount(), mount()) }, nil, nil},
		} {
			if err := step.change(); err != nil {
				t.Fatal(step.name, err)
			}
			_, other := Put(filepath.Join(host, "file"), []byte(step.name), 0o644)
			_, inside := Put(filepath.Join(container, "file"), []byte(step.name), 0o644)
			if !errors.Is(other, step.other) || !errors.Is(inside, step.inside) {
				t.Errorf("%s: on the host %v, in the container %v", step.name, other, inside)
			}
		}
	})
}
