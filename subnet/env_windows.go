package subnet

import (
	"errors"
	"os"
	"path/filepath"
	"time"
)

// replaceFile writes beside the file and renames. Windows refuses that while somebody has the file open, which
// readers of it do only for a moment.
func replaceFile(path string, text []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".subnet-*")
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
