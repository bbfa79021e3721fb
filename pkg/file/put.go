package file

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
)

// Copy makes the file at to hold what the one at from holds, as Put does.
func Copy(from, to string, mode os.FileMode) (changed bool, err error) {
	want, err := os.ReadFile(from)
	if err != nil {
		return false, err
	}
	return Put(to, want, mode)
}

// Holds reports whether the file at path is a regular one with this content and mode.
func Holds(path string, want []byte, mode os.FileMode) bool {
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() || !hasMode(info, mode) || info.Size() != int64(len(want)) {
		return false
	}
	text, err := os.ReadFile(path)
	return err == nil && bytes.Equal(text, want)
}

// Put makes the file at to hold want, with the mode, and reports whether it had to: readers see the old content or the
// new one, never a part, and an equal file is left alone. It makes the directory if need be.
func Put(to string, want []byte, mode os.FileMode) (changed bool, err error) {
	if Holds(to, want, mode) {
		return false, nil
	}
	return true, write(to, want, mode, true)
}

// Create is Put for a file that must not be there: it fails with fs.ErrExist, also if someone else makes the file at the
// same time. On a file system that cannot do both in one step the later of the two writers wins.
func Create(path string, text []byte, mode os.FileMode) error { return write(path, text, mode, false) }

func write(path string, text []byte, mode os.FileMode, over bool) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := replace(path, text, mode, over); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
