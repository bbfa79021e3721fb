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

// Put makes the file at to hold want, with the mode, and tells whether it had to: readers see the old content or the
// new one, never a part, and an equal file is left alone. It makes the directory if need be.
func Put(to string, want []byte, mode os.FileMode) (changed bool, err error) {
	info, err := os.Lstat(to)
	if err == nil && info.Mode().IsRegular() && hasMode(info, mode) && info.Size() == int64(len(want)) {
		if is, err := os.ReadFile(to); err == nil && bytes.Equal(is, want) {
			return false, nil
		}
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return false, err
	}
	if err := replace(to, want, mode); err != nil {
		return false, fmt.Errorf("write %s: %w", to, err)
	}
	return true, nil
}
