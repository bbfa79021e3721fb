package file

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// tryLock returns nil, without an error, if another process holds the lock.
func tryLock(path string) (unlock func() error, err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil { //nolint:gosec // a descriptor is an int
		return f.Close, nil // closing the file releases the lock
	} else if !errors.Is(err, unix.EWOULDBLOCK) {
		return nil, errors.Join(err, f.Close())
	}
	return nil, f.Close()
}
