package file

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// pollEvery bounds the delay of a change without a notification: the directory does
// not exist, or something was mounted over it.
const pollEvery = time.Second

// pollGoneDir is the first interval for a directory that was just deleted. It often
// exists again at once, and changes in it are missed until it is watched again. The
// interval doubles until it is pollEvery; until then, every poll counts as a change,
// because the directory may have existed in between.
const pollGoneDir = 10 * time.Millisecond

// Watch notifies of changes of the files at paths, their deletion and creation, by
// any program including this one. Neither a file nor its directory needs to exist.
// The channel receives one value for any number of changes, and none after ctx has
// ended; it is never closed. If the system has no notifications left (Linux limits
// them per user), Watch polls every second. Of a directory, only new and deleted
// entries are changes, and Watch may notice them after a second.
func Watch(ctx context.Context, paths ...string) (<-chan struct{}, error) {
	changed := make(chan struct{}, 1)
	var watches []*watch
	for _, path := range paths {
		full, err := filepath.Abs(path)
		if err != nil {
			return nil, fmt.Errorf("watch %s: %w", path, err)
		}
		watches = append(watches, &watch{path: full, dir: filepath.Dir(full), changed: changed})
	}
	for _, w := range watches {
		w.start(ctx)
	}
	return changed, nil
}

type watch struct {
	path, dir string
	watcher   *fsnotify.Watcher // nil: the system has none left
	watched   fs.FileInfo       // the watched directory; nil: none
	last      fs.FileInfo       // the file at the last poll; nil: it did not exist
	changed   chan struct{}     // has capacity 1, and is shared with other watches
}

// start begins to watch, until ctx ends.
func (w *watch) start(ctx context.Context) {
	if watcher, err := fsnotify.NewWatcher(); err == nil {
		w.watcher = watcher
	}
	w.last = stat(w.path)
	w.watchDir()
	go w.run(ctx)
}

// run polls the file also when notifications work, since some may be missing. A
// notification always counts as a change, without a comparison: two writes within one
// tick of the file system's clock leave the same time stamp.
func (w *watch) run(ctx context.Context) {
	interval := pollEvery
	tick := time.NewTicker(interval)
	defer tick.Stop()
	var events <-chan fsnotify.Event
	var dropped <-chan error
	if w.watcher != nil {
		events, dropped = w.watcher.Events, w.watcher.Errors
		defer w.watcher.Close() //nolint:errcheck // nothing was written through it
	}
	for {
		notified := false
		select {
		case <-ctx.Done():
			return
		case e := <-events:
			notified = e.Name == w.path
			if e.Name == w.dir {
				w.watched, interval = nil, pollGoneDir/2 // deleted or renamed; doubled below
			} else if !notified {
				continue
			}
		case <-dropped:
			notified = true
		case <-tick.C:
		}
		newDir := w.watchDir() // the file may have been created in it before it was watched
		file := stat(w.path)
		justGone := w.watched == nil && interval < pollEvery
		if notified || newDir || justGone || !same(w.last, file) {
			notify(w.changed)
		}
		w.last = file
		if interval *= 2; w.watched != nil || interval > pollEvery {
			interval = pollEvery
		}
		tick.Reset(interval)
	}
}

// watchDir watches the directory that exists now, and reports whether it is not the
// watched one.
func (w *watch) watchDir() (changed bool) {
	if w.watcher == nil {
		return false
	}
	dir := stat(w.dir)
	if dir == nil && w.watched == nil || os.SameFile(dir, w.watched) {
		return false
	}
	_ = w.watcher.Remove(w.dir) // fails if the watch ended with its directory
	if w.watched = dir; dir != nil && w.watcher.Add(w.dir) != nil {
		w.watched = nil // deleted again, or no watch left in the system: retry at the next poll
	}
	return true
}

// stat returns nil for a file that does not exist or cannot be read.
func stat(path string) fs.FileInfo {
	info, err := os.Stat(path)
	if err != nil {
		return nil
	}
	// On Windows, info has only the path until the first SameFile, which looks up the
	// file's identity. Without this call a later comparison would look up the file that
	// is at the path then.
	os.SameFile(info, info)
	return info
}

// same reports whether a file is the same and has not changed, as far as stat tells.
func same(a, b fs.FileInfo) bool {
	return a == nil && b == nil || os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

// notify sends to a channel of capacity 1, unless it has a value already.
func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
