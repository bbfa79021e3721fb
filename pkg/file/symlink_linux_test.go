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
	changed, err := Watch(t.Context(), path)
	do(err)
	quiet(t, changed)
	fast := 0
	for _, name := range []string{"2", "3", "4", "5", "6"} {
		began := time.Now()
		release(name)
		select {
		case <-changed:
		case <-time.After(2 * time.Minute):
			t.Fatal("not noticed")
		}
		if time.Since(began) < pollWatched/5 {
			fast++
		}
	}
	if fast < 3 { // polls, which come every pollWatched, find one at most
		t.Errorf("%d of 5 changes were noticed at once", fast)
	}
}
