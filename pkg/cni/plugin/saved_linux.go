package plugin

import (
	"os"

	"golang.org/x/sys/unix"
)

// makeDir creates the directory of the saved files, for root alone.
func makeDir(dir string) error { return os.MkdirAll(dir, 0o700) }

// moveIntoPlace locks a temporary file, renames it to path and returns it open.
func moveIntoPlace(f *os.File, path string) (*os.File, error) {
	// No other process can hold the lock, so this fails only if the file system
	// does not support locks. The plugin works without them then.
	_ = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	return f, os.Rename(f.Name(), path)
}

// tryLock opens and locks the file at path. locked is false only if another
// process holds the lock: it is true as well if the file cannot be opened or the
// file system does not support locks, because waiting would not help.
func tryLock(path string) (f *os.File, locked bool) {
	f, err := os.Open(path)
	if err != nil {
		return nil, true
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == unix.EWOULDBLOCK {
		_ = f.Close() // nothing was written
		return nil, false
	}
	return f, true
}
