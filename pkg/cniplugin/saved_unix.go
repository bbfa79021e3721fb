//go:build !windows

package cniplugin

import (
	"os"

	"golang.org/x/sys/unix"
)

// place makes an open temporary file the one at path, locked, and returns it open.
func place(f *os.File, path string) (*os.File, error) {
	// No other process has it: this cannot fail but where the file system knows no locks, which then do not count.
	_ = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	return f, os.Rename(f.Name(), path)
}

// tryLock opens and locks the file at path. locked is true, too, where it cannot be opened, or the file system knows no
// locks: there is nothing to wait for.
func tryLock(path string) (f *os.File, locked bool) {
	f, err := os.Open(path)
	if err != nil {
		return nil, true
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == unix.EWOULDBLOCK {
		_ = f.Close() // it was only read
		return nil, false
	}
	return f, true
}
