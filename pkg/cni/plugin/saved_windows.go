package plugin

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/windows"

	"flannel/pkg/file"
)

// makeDir creates the directory of the saved files, for SYSTEM and administrators alone.
func makeDir(dir string) error { return file.MkdirAll(dir) }

// moveIntoPlace closes a temporary file and renames it to path: Windows cannot
// rename an open file. For a second, it waits for other programs that have the file
// open, such as virus scanners. No lock is needed, see KillDelegateOnExit.
func moveIntoPlace(f *os.File, path string) (*os.File, error) {
	if err := f.Close(); err != nil {
		return f, err
	}
	for start := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		err := os.Rename(f.Name(), path)
		if err == nil {
			return nil, nil
		}
		inUse := errors.Is(err, windows.ERROR_SHARING_VIOLATION) || errors.Is(err, windows.ERROR_ACCESS_DENIED)
		if !inUse || time.Since(start) > time.Second {
			return f, err
		}
	}
}

// tryLock locks nothing: see savedFile.
func tryLock(string) (f *os.File, locked bool) { return nil, true }
