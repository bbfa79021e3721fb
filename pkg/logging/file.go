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

// logFile is the file of --log-file, or of OpenFile. If the program crashes, the runtime
// writes the stack traces into it, too.
type logFile struct {
	path string

	mu          sync.Mutex // protects the following fields
	file        *os.File
	size, limit int64 // bytes; a write beyond limit rotates the file
}

// OpenFile opens a file for the output of a program that goes on for long. The file is
// rotated as that of --log-file is, and may be written concurrently. A program opens only one,
// and none beside --log-file, because stack traces go to the last.
func OpenFile(path string) (io.WriteCloser, error) { return openLogFile(path) }

// openLogFile opens the file at path for appending. It creates a missing directory.
func openLogFile(path string) (*logFile, error) {
	if err := file.MkdirAll(filepath.Dir(path)); err != nil {
		return nil, err
	}
	l := &logFile{path: path, limit: maxFile}
	return l, l.open()
}

// open opens the file, which may have content of an earlier run, and gives it to the
// runtime for stack traces.
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
	return debug.SetCrashOutput(f, debug.CrashOptions{})
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
	_ = debug.SetCrashOutput(nil, debug.CrashOptions{}) // closes the runtime's duplicate of the file
	return l.file.Close()
}
