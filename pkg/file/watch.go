package file

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"flannel/pkg/reconcile"
)

// pollEvery bounds the delay of a change without a notification. pollNotified does where the
// system notifies of all but what is rare: see isNotified.
const (
	pollEvery    = time.Second
	pollNotified = 5 * time.Second
)

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
// entries are changes, and Watch may notice them after a second; likewise that a symbolic
// link leads to another file although the link is the same. A change of its target is noticed
// at once if the target can be watched. Watch may notice after five seconds that a path leads to
// another file or directory: something was mounted over the former one or unmounted from it,
// or a directory above it was renamed. Without paths, Watch watches nothing.
func Watch(ctx context.Context, paths ...string) (<-chan struct{}, error) {
	w := &watch{dirs: map[string]*watchedDir{}, files: map[string]fs.FileInfo{}, changed: make(chan struct{}, 1)}
	for _, path := range paths {
		full, err := filepath.Abs(path)
		if err != nil {
			return nil, fmt.Errorf("watch %s: %w", path, err)
		}
		w.files[full], w.dirs[filepath.Dir(full)] = nil, &watchedDir{}
	}
	if len(paths) > 0 {
		w.start(ctx)
	}
	return w.changed, nil
}

// watch is one call of Watch. All its paths share a watcher, of which Linux has few for
// each user (128 by default), while each can watch many directories. Once start has started
// it, the goroutine of run has the fields to itself. It watches directories, because a file
// that is replaced by a rename takes its watch with it. It also watches the files (watchFile).
type watch struct {
	watcher *fsnotify.Watcher      // nil: the system has none left
	dirs    map[string]*watchedDir // those of files
	files   map[string]fs.FileInfo // at the last poll; nil: it did not exist
	changed chan struct{}          // has capacity 1
}

// watchedDir is a directory, by its path.
type watchedDir struct {
	info fs.FileInfo // of the directory that is watched; nil: none
	gone bool        // it was deleted or renamed just now
}

// start begins to watch, until ctx ends.
func (w *watch) start(ctx context.Context) {
	pending := &notices{wake: make(chan struct{}, 1), names: map[string]bool{}}
	if watcher, err := fsnotify.NewWatcher(); err == nil { // an error: only polls, see Watch
		w.watcher = watcher
		go pending.receive(watcher.Events, watcher.Errors, w.isOurs())
	}
	w.poll()
	w.watchDirs()
	go w.run(ctx, pending)
}

// run polls the files also when notifications work, since some may be missing. A
// notification always counts as a change, without a comparison: two writes within one
// tick of the file system's clock leave the same time stamp.
func (w *watch) run(ctx context.Context, pending *notices) {
	if w.watcher != nil {
		defer func() { go w.watcher.Close() }() // nothing was written through it; see receive
	}
	interval := pollEvery
	r := reconcile.Runner{
		News:  []<-chan struct{}{pending.wake},
		Beats: true, // the polls come together with the process's other timers
		Work: func(context.Context) (time.Duration, error) {
			names, notified := pending.take()
			if notified { // lost notifications count as one about each file
				for path := range w.files {
					names[path] = true
				}
			}
			for name := range names {
				if dir := w.dirs[name]; dir != nil { // a notification about the directory itself
					dir.info, dir.gone, interval = nil, true, pollGoneDir/2 // deleted or renamed; doubled below
				} else { // the watch on the file ends if it is renamed, also if it is renamed back: poll watches it anew
					notified, w.files[name] = true, nil
				}
			}
			newDir := w.watchDirs() // a file may have been created in it before it was watched
			changed := w.poll()
			justGone := w.justGone(interval < pollEvery)
			if notified || newDir || justGone || changed {
				reconcile.Notify(w.changed)
			}
			if interval *= 2; !justGone || interval > pollEvery {
				interval = pollEvery
			}
			if interval == pollEvery && w.isNotified() {
				return pollNotified, nil
			}
			return interval, nil
		},
	}
	r.Run(ctx)
}

// isNotified reports whether the system notifies of all changes that are not rare. Windows does
// not if a directory is renamed. A link to a file in another directory is how Kubernetes mounts
// ConfigMaps.
func (w *watch) isNotified() bool {
	for _, dir := range w.dirs {
		if dir.info == nil { // also without notifications
			return false
		}
	}
	for path, file := range w.files {
		if file != nil && file.IsDir() {
			return false
		}
		if link, err := os.Lstat(path); err == nil && link.Mode()&fs.ModeSymlink != 0 {
			return false
		}
	}
	return runtime.GOOS != "windows"
}

// isOurs returns a condition for names: those of the files and of their directories. It is for another goroutine.
func (w *watch) isOurs() func(name string) bool {
	ours := map[string]bool{}
	for name := range w.files {
		ours[name] = true
	}
	for name := range w.dirs {
		ours[name] = true
	}
	return func(name string) bool { return ours[name] }
}

// notices are the notifications that nobody has taken yet. The goroutine of receive adds them, and that of watch.run
// takes them.
type notices struct {
	wake chan struct{} // has capacity 1, and a value while there are some

	mu    sync.Mutex
	names map[string]bool
	lost  bool // some notifications are missing
}

// receive takes over what a watcher reports, until the watcher is closed. It never lets the watcher wait: on Windows, one
// goroutine of fsnotify reports, and carries out Add, Remove and Close. Were it waiting for a receiver of an error, such as
// that its buffer was too small, all of these would wait for ever. Close can do so even then, if it comes at the same
// moment, which is why nobody waits for it.
func (t *notices) receive(events <-chan fsnotify.Event, failures <-chan error, ours func(name string) bool) {
	for {
		select {
		case e, open := <-events:
			if !open {
				return
			}
			if ours(e.Name) {
				t.add(e.Name)
			}
		case _, open := <-failures:
			if !open {
				return
			}
			t.add("")
		}
	}
}

// add keeps a name; "": notifications were lost.
func (t *notices) add(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if name == "" {
		t.lost = true
	} else {
		t.names[name] = true
	}
	reconcile.Notify(t.wake)
}

// take returns the notifications since the last call.
func (t *notices) take() (names map[string]bool, lost bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	names, lost = t.names, t.lost
	t.names, t.lost = map[string]bool{}, false
	return names, lost
}

// poll looks at all files, and reports whether one has changed since the last poll.
func (w *watch) poll() (changed bool) {
	for path, last := range w.files {
		file := stat(path)
		changed = changed || !same(last, file)
		w.files[path] = file
		if !os.SameFile(last, file) {
			w.watchFile(path, file)
		}
	}
	return changed
}

// watchFile watches a file that is new at its path. A file that is a mount point, or to which a
// symbolic link leads, changes without a notification about the directory of the path. If several
// paths lead to one file, fsnotify watches it under one of them: if that one then leads elsewhere,
// polls notice the changes for the others. Windows has no watches on files.
func (w *watch) watchFile(path string, file fs.FileInfo) {
	if w.watcher == nil || w.dirs[path] != nil || runtime.GOOS == "windows" {
		return
	}
	_ = w.watcher.Remove(path) // fails if there was no file, or the watch ended with it
	if file != nil && !file.IsDir() {
		_ = w.watcher.Add(path) // after an error, polls notice its changes
	}
}

// justGone reports whether a directory was deleted and is not there again. It keeps that
// in mind only while polls are quick.
func (w *watch) justGone(quick bool) (gone bool) {
	for _, dir := range w.dirs {
		dir.gone = dir.gone && quick && dir.info == nil
		gone = gone || dir.gone
	}
	return gone
}

// watchDirs watches the directories that exist now, and reports whether one of them is not
// the watched one.
func (w *watch) watchDirs() (changed bool) {
	if w.watcher == nil {
		return false
	}
	for path, watched := range w.dirs {
		dir := stat(path)
		if dir == nil && watched.info == nil || os.SameFile(dir, watched.info) {
			continue
		}
		changed = true
		_ = w.watcher.Remove(path) // fails if the watch ended with its directory
		if watched.info = dir; dir != nil && w.watcher.Add(path) != nil {
			watched.info = nil // deleted again, or no watch left in the system: retry at the next poll
		}
	}
	return changed
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
