package cniplugin

import (
	"errors"
	"os"
)

// place makes a temporary file the one at path. Windows renames no file that is open, so there is no lock, nor is one
// needed: see EndTogether.
func place(f *os.File, path string) (*os.File, error) {
	if err := errors.Join(f.Close(), os.Rename(f.Name(), path)); err != nil {
		return f, err
	}
	return nil, nil
}

func tryLock(string) (f *os.File, locked bool) { return nil, true }
