package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"

	"flannel/internal/test/eventually"
)

func TestWatch(t *testing.T) {
	t.Parallel() // it mostly waits
	dir := filepath.Join(t.TempDir(), "flannel")
	path := filepath.Join(dir, "subnet.env")
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	write := func(text string) { t.Helper(); do(os.WriteFile(path, []byte(text), 0o644)) }
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	changed, err := Watch(ctx, path)
	do(err)
	pinned := []string{"directory deleted", "directory made again", "directory replaced at once"}
	for _, step := range []struct {
		what string
		do   func()
	}{
		{"directory and file appear", func() { do(os.Mkdir(dir, 0o755)); write("a") }},
		{"rewritten, same length", func() { write("b") }},
		{"deleted", func() { do(os.Remove(path)) }},
		{"back", func() { write("b") }},
		{"another moved over it", func() { touch(t, path+".new"); do(os.Rename(path+".new", path)) }},
		{"moved away", func() { do(os.Rename(path, path+".old")) }},
		{"moved back", func() { do(os.Rename(path+".old", path)) }},
		{"truncated", func() { do(os.Truncate(path, 0)) }},
		{"directory deleted", func() { do(os.RemoveAll(dir)) }},
		{"directory made again", func() { do(os.Mkdir(dir, 0o755)); write("c") }},
		{"directory replaced at once", func() { do(os.RemoveAll(dir)); do(os.Mkdir(dir, 0o755)); write("c") }},
		{"directory moved away", func() { do(os.Rename(dir, dir+".old")) }},
		{"another directory moved in", func() { do(os.Rename(dir+".old", dir)) }},
		{"deleted in it", func() { do(os.Remove(path)) }},
		{"written by us", func() {
			do(Replace(path, []byte("d")))
		}},
	} {
		if runtime.GOOS == "windows" && slices.Contains(pinned, step.what) {
			t.Logf("%-28s skipped: Wine keeps a deleted directory until the last handle on it is closed", step.what)
			continue
		}
		quiet(t, changed)
		start := time.Now()
		step.do()
		select {
		case <-changed:
			t.Logf("%-28s noticed after %v", step.what, time.Since(start).Round(10*time.Microsecond))
		case <-time.After(2 * time.Minute):
			t.Fatalf("%s: not noticed", step.what)
		}
	}
	notified := true
	for tries := 5; notified; tries-- { // on a busy machine the notification of the last step may arrive only now
		quiet(t, changed)
		touch(t, filepath.Join(dir, "another file"))
		select {
		case <-changed:
			if tries == 0 {
				t.Fatal("notified of another file in the directory")
			}
		case <-time.After(3 * pollNotified / 2):
			notified = false
		}
	}
	if runtime.GOOS == "windows" { // where a directory that is open cannot be deleted, as it is when the test ends
		cancel()
		closed(t, dir, 0)
	}
}

// closed waits until at most this many files are open, as openFiles counts.
func closed(t *testing.T, dir string, files int) {
	t.Helper()
	eventually.Nil(t, "files are closed", func() error {
		if n := openFiles(t, dir); n > files {
			return fmt.Errorf("%d files open, want %d", n, files)
		}
		return nil
	})
}

// Any number of paths costs one watcher, no path none, and each change is noticed, whatever happens to
// the directories of others.
func TestWatchManyPaths(t *testing.T) {
	dir := t.TempDir()
	before := openFiles(t, dir)
	if _, err := Watch(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := openFiles(t, dir); n > before {
		t.Fatalf("%d files are open for no path, and %d before", n, before)
	}
	one, cancel := context.WithCancel(t.Context())
	if _, err := Watch(one, filepath.Join(dir, "0")); err != nil {
		t.Fatal(err)
	}
	cost := openFiles(t, dir) - before
	cancel()
	closed(t, dir, before)
	var paths []string
	for i := range 30 {
		paths = append(paths, filepath.Join(dir, strconv.Itoa(i)))
	}
	many, cancel := context.WithCancel(t.Context())
	if _, err := Watch(many, paths...); err != nil {
		t.Fatal(err)
	}
	if n := openFiles(t, dir) - before; n != cost {
		t.Errorf("%d files are open for 30 paths, and %d for one", n, cost)
	}
	cancel()
	closed(t, dir, before)
	if runtime.GOOS == "windows" {
		return // Wine keeps a deleted directory until the last handle on it is closed
	}
	inner := filepath.Join(dir, "conf.d")
	file, other := filepath.Join(inner, "a.toml"), filepath.Join(dir, "b.toml")
	changed, err := Watch(t.Context(), file, inner, other, filepath.Join(dir, "none", "c.toml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []func() error{
		func() error { return os.Mkdir(inner, 0o755) },
		func() error { return os.WriteFile(file, []byte("1"), 0o644) },
		func() error { return os.WriteFile(other, []byte("1"), 0o644) },
		func() error { return os.RemoveAll(inner) },
		func() error { return os.WriteFile(other, []byte("2"), 0o644) }, // of the same length
		func() error { return os.Mkdir(inner, 0o755) },
		func() error { return os.WriteFile(file, []byte("1"), 0o644) },
		func() error { return os.WriteFile(file, []byte("2"), 0o644) },
	} {
		quiet(t, changed)
		if err := step(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-changed:
		case <-time.After(2 * time.Minute):
			t.Fatal("not noticed")
		}
	}
}

func TestWatchEnds(t *testing.T) {
	dir := t.TempDir()
	before := openFiles(t, dir)
	ctx, cancel := context.WithCancel(t.Context())
	for range 10 {
		if _, err := Watch(ctx, filepath.Join(dir, "subnet.env")); err != nil {
			t.Fatal(err)
		}
	}
	if n := openFiles(t, dir); n <= before {
		t.Fatalf("%d files open while it is watched, %d before: openFiles does not count watches", n, before)
	}
	cancel()
	closed(t, dir, before)
}

func touch(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
}

// quiet waits until there are no notifications any more.
func quiet(t *testing.T, changed <-chan struct{}) {
	t.Helper()
	for {
		select {
		case <-changed:
		case <-time.After(pollEvery + pollEvery/4):
			return
		}
	}
}

// Paths are polled every second unless the system notifies of their changes.
func TestIsNotified(t *testing.T) {
	dir := t.TempDir()
	touch(t, filepath.Join(dir, "file"))
	if err := os.Symlink("file", filepath.Join(dir, "link")); err != nil && runtime.GOOS != "windows" { // which needs a privilege for links
		t.Fatal(err)
	}
	for path, want := range map[string]bool{"file": runtime.GOOS != "windows", "missing": runtime.GOOS != "windows", "link": false, "no/file": false, ".": false} {
		full := filepath.Join(dir, path)
		w := &watch{dirs: map[string]*watchedDir{filepath.Dir(full): {info: stat(filepath.Dir(full))}}, files: map[string]fs.FileInfo{full: stat(full)}}
		if got := w.isNotified(); got != want {
			t.Errorf("%s: %t", path, got)
		}
		w.dirs[filepath.Dir(full)].info = nil
		if w.isNotified() {
			t.Errorf("%s: the directory is not watched", path)
		}
	}
}

// A watcher does not have to wait for a receiver, whatever it reports; what concerns the files is kept.
func TestNoticesAreTaken(t *testing.T) {
	pending := &notices{wake: make(chan struct{}, 1), names: map[string]bool{}}
	events, failures := make(chan fsnotify.Event), make(chan error)
	ended := make(chan struct{})
	go func() {
		pending.receive(events, failures, func(name string) bool { return name == "ours" })
		close(ended)
	}()
	for range 100 {
		events <- fsnotify.Event{Name: "ours"}
		events <- fsnotify.Event{Name: "another"}
		failures <- fsnotify.ErrEventOverflow
	}
	close(events)
	<-ended
	<-pending.wake
	if names, lost := pending.take(); len(names) != 1 || !names["ours"] || !lost {
		t.Errorf("%v, lost %v", names, lost)
	}
	if names, lost := pending.take(); len(names) != 0 || lost {
		t.Errorf("taken twice: %v, lost %v", names, lost)
	}
}

// A watch outlives more changes than its system reports, while directories come and go.
func TestWatchAmongManyChanges(t *testing.T) {
	dir, err := os.MkdirTemp("", "many") // deleted below, when the watch has ended
	if err != nil {
		t.Fatal(err)
	}
	sub, path := filepath.Join(dir, "sub"), filepath.Join(dir, "file")
	ctx, cancel := context.WithCancel(t.Context())
	changed, err := Watch(ctx, path, filepath.Join(sub, "other"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3000 {
		name := filepath.Join(dir, fmt.Sprintf("a rather long name that fills a buffer for notifications %d", i))
		if err := errors.Join(os.WriteFile(name, nil, 0o600), os.Remove(name)); err != nil {
			t.Fatal(err)
		}
		if i%100 == 0 {
			_ = os.Mkdir(sub, 0o700) // Wine keeps it until the watch on it ends
			_ = os.Remove(sub)
		}
	}
	quiet(t, changed)
	if err := os.WriteFile(path, []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "the change is noticed", func() bool { return len(changed) > 0 })
	cancel()
	eventually.Nil(t, "the directory is deleted", func() error { return os.RemoveAll(dir) })
}
