// Package file replaces files so that no reader ever sees a part of one, and notices when another hand touches one.
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

// pollEvery bounds how late a change is noticed where the system does not tell, or cannot: a directory that is away,
// a mount over it.
const pollEvery = time.Second

// lookAgain is after how long a directory that has just gone is looked for, at first: it is often back at once, and
// what happens in it before it is watched goes unseen. That it may have been back, and gone again, counts as a change.
const lookAgain = 10 * time.Millisecond

// Watch tells of changes of the file at path by anybody, us included, its deletion and its return; neither the file
// nor its directory must be there. The channel receives one value for any number of changes, and nothing more once
// ctx has ended; it is never closed. Where the system has no more notifications to give (Linux bounds them for each
// user), changes are noticed within a second.
func Watch(ctx context.Context, path string) (<-chan struct{}, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", path, err)
	}
	w := &watch{path: path, dir: filepath.Dir(path), changed: make(chan struct{}, 1)}
	if w.notify, err = fsnotify.NewWatcher(); err != nil {
		w.notify = nil
	}
	w.last = stat(path)
	w.rearm()
	go w.run(ctx)
	return w.changed, nil
}

type watch struct {
	path, dir string
	notify    *fsnotify.Watcher // nil: the system has none left
	armed     fs.FileInfo       // the directory that is watched; nil: none
	last      fs.FileInfo       // the file; nil: there was none
	changed   chan struct{}
}

// run looks at the file once in a while whatever the system tells, for it may not tell all. A notification counts
// without looking: two writes within one tick of the file system's clock leave the same time stamp.
func (w *watch) run(ctx context.Context) {
	look := pollEvery
	tick := time.NewTicker(look)
	defer tick.Stop()
	var events <-chan fsnotify.Event
	var lost <-chan error
	if w.notify != nil {
		events, lost = w.notify.Events, w.notify.Errors
		defer w.notify.Close() //nolint:errcheck // it only frees
	}
	for {
		told := false
		select {
		case <-ctx.Done():
			return
		case e := <-events:
			told = e.Name == w.path
			if e.Name == w.dir {
				w.armed, look = nil, lookAgain/2 // deleted or moved: another may stand there now
			} else if !told {
				continue
			}
		case <-lost:
			told = true // events were dropped
		case <-tick.C:
		}
		// A directory that came anew may have got its file before it was watched.
		fresh := w.rearm()
		now := stat(w.path)
		justGone := w.armed == nil && look < pollEvery
		if told || fresh || justGone || !same(w.last, now) {
			poke(w.changed)
		}
		w.last = now
		if look *= 2; w.armed != nil || look > pollEvery {
			look = pollEvery
		}
		tick.Reset(look)
	}
}

// rearm watches the directory that is there now, and tells whether it is another than before.
func (w *watch) rearm() bool {
	if w.notify == nil {
		return false
	}
	now := stat(w.dir)
	if now == nil && w.armed == nil || now != nil && w.armed != nil && os.SameFile(now, w.armed) {
		return false
	}
	_ = w.notify.Remove(w.dir) // it may have gone with its directory
	if w.armed = now; now != nil && w.notify.Add(w.dir) != nil {
		w.armed = nil // gone again, or no watch left in the system: the next tick tries again
	}
	return true
}

func stat(path string) fs.FileInfo {
	info, err := os.Stat(path)
	if err != nil {
		return nil
	}
	// On Windows this makes info keep which file it is of; else a later comparison would look at the path's file of then.
	os.SameFile(info, info)
	return info
}

func same(a, b fs.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

// poke leaves one value in a channel of capacity 1.
func poke(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
