package subnet

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// pollEvery bounds how late a change is noticed where the system does not tell, or cannot: a directory that is away,
// a mount over it.
const pollEvery = time.Second

// WatchFile tells of changes of the file at path by anybody, us included, its deletion and its return; neither the
// file nor its directory must be there. The channel receives one value for any number of changes, and nothing more
// once ctx has ended; it is never closed.
func WatchFile(ctx context.Context, path string) (<-chan struct{}, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	w := &fileWatch{path: path, hints: make(chan struct{}, 1), changed: make(chan struct{}, 1)}
	w.last = w.stat()
	rearm, stop := notifyDir(path, w.hints)
	rearm()
	go func() {
		defer stop()
		w.run(ctx, rearm)
	}()
	return w.changed, nil
}

type fileWatch struct {
	path    string
	last    fs.FileInfo // nil: there was no file
	hints   chan struct{}
	changed chan struct{}
}

// run looks at the file once in a while whatever the system tells, for it may not tell all. A hint counts without
// looking: two writes within one tick of the file system's clock leave the same time stamp.
func (w *fileWatch) run(ctx context.Context, rearm func() bool) {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		hint := false
		select {
		case <-ctx.Done():
			return
		case <-w.hints:
			hint = true
		case <-tick.C:
		}
		// A directory that came anew may have got its file before it was watched.
		fresh := rearm()
		now := w.stat()
		if hint || fresh || !sameFile(w.last, now) {
			poke(w.changed)
		}
		w.last = now
	}
}

func (w *fileWatch) stat() fs.FileInfo {
	info, err := os.Stat(w.path)
	if err != nil {
		return nil
	}
	return info
}

func sameFile(a, b fs.FileInfo) bool {
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
