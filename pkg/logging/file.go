package logging

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"

	"flannel/pkg/file"
)

// maxFile is the size, in bytes, at which a log file is renamed to <name>.1, which
// replaces an older one. So both together take at most twice as much.
const maxFile = 10 << 20

// logFile is the file of --log-file, or another one that OpenFile has opened.
type logFile struct {
	path    string
	crashes bool // see writeCrashes

	mu          sync.Mutex // protects the following fields
	file        *os.File
	size, limit int64 // bytes; a write beyond limit rotates the file
}

// OpenFile opens the file at path for appending. It creates a missing directory. The file is
// rotated, and may be written concurrently.
func OpenFile(path string) (io.WriteCloser, error) {
	l, err := openLog(path)
	if err != nil {
		return nil, err // l in an interface would not be nil
	}
	return l, nil
}

// openLog is OpenFile; New also needs writeCrashes.
func openLog(path string) (*logFile, error) {
	if err := file.MkdirAll(filepath.Dir(path)); err != nil {
		return nil, err
	}
	l := &logFile{path: path, limit: maxFile}
	if err := l.open(); err != nil {
		return nil, err
	}
	return l, nil
}

// writeCrashes has the runtime write the stack traces into the file, too, if the program
// crashes. A program has at most one such file.
func (l *logFile) writeCrashes() error {
	l.crashes = true
	return debug.SetCrashOutput(l.file, debug.CrashOptions{})
}

// open opens the file, which may have content of an earlier run.
func (l *logFile) open() error {
	f, err := os.OpenFile(l.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return errors.Join(err, f.Close())
	}
	l.file, l.size = f, info.Size()
	if l.crashes {
		return l.writeCrashes()
	}
	return nil
}

// Write implements io.Writer; slog calls it with one line.
func (l *logFile) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.size > 0 && l.size+int64(len(p)) > l.limit {
		if err := l.rotate(); err != nil {
			return 0, err
		}
	}
	n, err := l.file.Write(p)
	l.size += int64(n)
	return n, err
}

// rotate renames the file and opens a new one, with mu held. On Windows the rename fails while
// another program reads one of the two files; then the old file is used for a while
// longer.
func (l *logFile) rotate() error {
	_ = l.close() // the file is not used any more, whatever the error
	l.limit = maxFile
	renameErr := os.Rename(l.path, l.path+".1")
	err := l.open()
	// If it could not be opened, the line that caused the rotation is lost.
	switch {
	case err != nil:
		l.limit = 0 // the next write retries
	case renameErr != nil:
		l.limit = l.size + maxFile/8
	}
	return err
}

// Close closes the file, also for stack traces.
func (l *logFile) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.close()
}

// close is Close with mu held.
func (l *logFile) close() error {
	if l.crashes {
		_ = debug.SetCrashOutput(nil, debug.CrashOptions{}) // closes the runtime's duplicate of the file
	}
	return l.file.Close()
}
