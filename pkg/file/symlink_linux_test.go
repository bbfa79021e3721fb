package file

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// kubelet replaces a ConfigMap by renaming a symbolic link beside the files, which are links to
// what is behind it. That is noticed at once, and not by a poll.
func TestWatchConfigMap(t *testing.T) {
	dir := t.TempDir()
	do := func(errs ...error) {
		t.Helper()
		for _, err := range errs {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	release := func(name string) {
		t.Helper()
		do(os.Mkdir(filepath.Join(dir, name), 0o755), os.WriteFile(filepath.Join(dir, name, "net-conf.json"), []byte(name), 0o644),
			os.Symlink(name, filepath.Join(dir, "..data_tmp")), os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	}
	release("1")
	path := filepath.Join(dir, "net-conf.json")
	do(os.Symlink("..data/net-conf.json", path))
	w, err := newWatch([]string{path})
	do(err)
	w.every, w.everyWatched = time.Hour, time.Hour // so that no poll finds a change
	w.start(t.Context())
	for _, name := range []string{"2", "3", "4"} {
		release(name)
		select {
		case <-w.changed:
		case <-time.After(2 * time.Minute):
			t.Fatal("not noticed")
		}
	}
}
