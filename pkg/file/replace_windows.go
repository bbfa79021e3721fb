package file

import (
	"errors"
	"os"
	"path/filepath"
	"time"
)

// Replace makes the file at path hold text: readers see the old text or the new one, never a part. Windows refuses
// to rename over a file that somebody has open, which readers do only for a moment.
func Replace(path string, text []byte) error { return replace(path, text, 0o644) }

// replace leaves the mode out: whether a file can be run is in its name.
func replace(path string, text []byte, _ os.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".flannel-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	for range 40 {
		if err = os.Rename(f.Name(), path); err == nil {
			return nil
		}
		time.Sleep(25 * time.Millisecond)
	}
	return err
}
