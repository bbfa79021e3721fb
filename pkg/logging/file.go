package logging

import (
	"errors"
	"os"
	"path/filepath"
	"runtime/debug"
)

// maxFile is when a log file becomes <name>.1 and another begins: together they take at most twice as many bytes.
const maxFile = 10 << 20

// logFile is what --log-file names. Should the program crash, its last words are there, too. One goroutine writes at
// a time, as those of slog's handlers do.
type logFile struct {
	path        string
	file        *os.File
	size, limit int64 // bytes; at the limit it is renamed
}

// openLogFile appends to the file at path; a missing directory is made.
func openLogFile(path string) (*logFile, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	l := &logFile{path: path, limit: maxFile}
	return l, l.open()
}

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

func (l *logFile) Write(p []byte) (int, error) {
	if l.size > 0 && l.size+int64(len(p)) > l.limit {
		if err := l.rotate(); err != nil {
			return 0, err
		}
	}
	n, err := l.file.Write(p)
	l.size += int64(n)
	return n, err
}

// rotate begins another file. On Windows somebody who reads one of the two keeps it from being renamed: then this one
// goes on for a while.
func (l *logFile) rotate() error {
	_ = l.Close() // to write is what matters
	l.limit = maxFile
	blocked := os.Rename(l.path, l.path+".1")
	err := l.open()
	switch {
	case err != nil:
		l.limit = 0 // the next line tries again
	case blocked != nil:
		l.limit = l.size + maxFile/8
	}
	return err
}

func (l *logFile) Close() error {
	_ = debug.SetCrashOutput(nil, debug.CrashOptions{}) // it has the file open, too
	return l.file.Close()
}
