// Package file writes files so that no reader ever sees a part of one, locks files
// against other processes, and watches files for changes.
package file

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// holds reports whether path is a regular file with this content and mode.
func holds(path string, want []byte, mode os.FileMode) bool {
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() || !hasMode(info, mode) || info.Size() != int64(len(want)) {
		return false
	}
	text, err := os.ReadFile(path)
	return err == nil && bytes.Equal(text, want)
}

// Put writes the file unless it already has this content and mode, and reports
// whether it did. Readers see the old content or the new one, never a part. Put
// creates the directory if it is missing.
func Put(to string, want []byte, mode os.FileMode) (changed bool, err error) {
	if holds(to, want, mode) {
		return false, nil
	}
	return true, write(to, want, mode, true)
}

// PutJSON is Put for the indented JSON of v, with mode 0644. v must not be nil. A file that
// is Unusable for ReadJSON (somebody else owns or wrote it) is renamed to <to>.refused before.
func PutJSON(to string, v any) error {
	setAside(to, v)
	text, err := json.MarshalIndent(v, "", "  ")
	if err == nil {
		_, err = Put(to, append(text, '\n'), 0o644)
	}
	return err
}

// Create is Put for a file that must not exist. It fails with fs.ErrExist, also if
// another process creates the file at the same time. On a file system without hard
// links it does not notice that, and overwrites the file of the other process.
func Create(path string, text []byte, mode os.FileMode) error { return write(path, text, mode, false) }

// write is writeFrom for a text.
func write(path string, text []byte, mode os.FileMode, overwrite bool) error {
	return writeFrom(bytes.NewReader(text), path, mode, overwrite)
}

// writeFrom creates the directory and replaces the file. If overwrite is false, the
// file must not exist.
func writeFrom(content io.Reader, path string, mode os.FileMode, overwrite bool) error {
	if err := MkdirAll(filepath.Dir(path)); err != nil {
		return err
	}
	if err := replace(path, content, mode, overwrite); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
