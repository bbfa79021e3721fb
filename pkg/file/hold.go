package file

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// HeldError says that another process has the lock.
type HeldError struct {
	Path   string
	Holder string // what it wrote about itself; empty if that cannot be read
}

func (e *HeldError) Error() string {
	return fmt.Sprintf("another process holds %s (%s)", e.Path, e.Holder)
}

// maxHolder bounds what is read of a lock file, in bytes.
const maxHolder = 200

// Hold takes the lock at path as Lock does, writes into the file who has it, in one line, and keeps it until release is
// called or the process ends. While another process has it, Hold calls waiting once and tries again until ctx ends; then
// the error is a HeldError. Directories that are missing are made.
func Hold(ctx context.Context, path, who string, waiting func(*HeldError)) (release func() error, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	release, err = tryLock(path)
	if err == nil && release == nil {
		held := &HeldError{Path: path, Holder: holder(path)}
		waiting(held)
		release, err = Lock(ctx, path)
		if errors.Is(err, context.DeadlineExceeded) {
			held.Holder = holder(path)
			return nil, held
		}
	}
	if err != nil {
		return nil, err
	}
	_ = sign(path, who) // who has it is for people; the lock is what counts
	return release, nil
}

// The first byte is what is locked: on Windows no other process can read it.

func sign(path, who string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	line := make([]byte, maxHolder) // what it does not fill covers a longer one of before
	line[copy(line[:maxHolder-1], strings.ReplaceAll(who, "\n", " "))] = '\n'
	_, err = f.WriteAt(line, 1)
	return errors.Join(err, f.Close())
}

func holder(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close() //nolint:errcheck // it was only read
	text := make([]byte, maxHolder)
	n, _ := f.ReadAt(text, 1)
	line, _, _ := bytes.Cut(text[:n], []byte("\n"))
	return strings.ToValidUTF8(string(line), "")
}
