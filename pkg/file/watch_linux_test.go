package file

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"flannel/internal/test/nstest"
)

// A file that is a mount point, or to which a link leads, may be changed elsewhere. The kernel notifies of that: a change that leaves
// size and time as they are is not noticed by a poll.
func TestWatchFilesElsewhere(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir, elsewhere := t.TempDir(), t.TempDir()
		mounted, link, sub := filepath.Join(dir, "mounted"), filepath.Join(dir, "link"), filepath.Join(dir, "sub")
		source, target, other := filepath.Join(elsewhere, "source"), filepath.Join(elsewhere, "target"), filepath.Join(elsewhere, "other")
		for _, path := range []string{mounted, source, target, other} {
			touch(t, path)
		}
		if err := errors.Join(unix.Mount(source, mounted, "", unix.MS_BIND, ""), os.Symlink(target, link), os.Mkdir(sub, 0o755)); err != nil {
			t.Fatal(err)
		}
		defer unix.Unmount(mounted, unix.MNT_DETACH) //nolint:errcheck // an error: the directory cannot be deleted
		inSub := filepath.Join(sub, "file")
		touch(t, inSub)
		changed, err := Watch(t.Context(), mounted, link, sub, inSub)
		if err != nil {
			t.Fatal(err)
		}
		hidden := func(path string) func() error {
			return func() error {
				info, err := os.Stat(path)
				if err != nil {
					return err
				}
				return os.Chtimes(path, info.ModTime(), info.ModTime())
			}
		}
		rename := func(from, to string) func() error { return func() error { return os.Rename(from, to) } }
		for _, step := range []struct {
			what string
			do   func() error
		}{
			{"source of the mount", hidden(source)},
			{"target of the link", hidden(target)},
			{"file in a directory that is watched, too", hidden(inSub)},
			{"link replaced", func() error { return errors.Join(os.Symlink(other, link+".new"), os.Rename(link+".new", link)) }},
			{"its new target", hidden(other)},
			{"source renamed", rename(source, source+".new")},
			{"source renamed back", rename(source+".new", source)},
			{"source after that", hidden(source)},
			{"target renamed and back", func() error { return errors.Join(os.Rename(other, other+".new"), os.Rename(other+".new", other)) }},
			{"target after that", hidden(other)},
		} {
			quiet(t, changed)
			if err := step.do(); err != nil {
				t.Fatal(err)
			}
			select {
			case <-changed:
			case <-time.After(2 * time.Minute):
				t.Fatalf("%s: not noticed", step.what)
			}
		}
	})
}
