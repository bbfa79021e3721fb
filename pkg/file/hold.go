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

// HeldError means that another process holds a lock.
type HeldError struct {
	Path   string
	Holder string // the text that it gave to Hold; empty if that cannot be read
}

func (e *HeldError) Error() string {
	return fmt.Sprintf("another process holds %s (%s)", e.Path, e.Holder)
}

// maxHolder bounds the line with the holder, in bytes.
const maxHolder = 200

// Hold takes the lock at path as Lock does and writes the holder, who, into the
// file, for people and for HeldError. The lock ends with release or with the
// process. If another process holds it, Hold calls waiting once and retries until
// ctx ends; after its deadline the error is a HeldError. Hold creates missing
// directories.
func Hold(ctx context.Context, path, who string, waiting func(*HeldError)) (release func() error, err error) {
	if err := MkdirAll(filepath.Dir(path)); err != nil {
		return nil, err
	}
	release, err = tryLock(path)
	if err == nil && release == nil { // another process holds it
		held := &HeldError{Path: path, Holder: holder(path)}
		waiting(held)
		release, err = Lock(ctx, path)
		if errors.Is(err, context.DeadlineExceeded) {
			held.Holder = holder(path) // maybe another one by now
			return nil, held
		}
	}
	if err != nil {
		return nil, err
	}
	_ = writeHolder(path, who) // without it, the lock still works
	return release, nil
}

// writeHolder writes the line with the holder. It begins at the second byte: the
// first one is locked, and on Windows no other process could read it.
func writeHolder(path, who string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	line := make([]byte, maxHolder) // always as long, to overwrite the whole line of an earlier holder
	line[copy(line[:maxHolder-1], strings.ReplaceAll(who, "\n", " "))] = '\n'
	_, err = f.WriteAt(line, 1)
	return errors.Join(err, f.Close())
}

// holder returns the line that writeHolder wrote, "" if it cannot be read.
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
