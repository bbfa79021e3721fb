package file

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// tryLock returns nil, without an error, if another process holds the lock.
func tryLock(path string) (unlock func() error, err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	h := windows.Handle(f.Fd())
	err = windows.LockFileEx(h, windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, &windows.Overlapped{})
	if err == nil {
		return func() error { // without UnlockFileEx, Windows may release the lock of a closed file later
			return errors.Join(windows.UnlockFileEx(h, 0, 1, 0, &windows.Overlapped{}), f.Close())
		}, nil
	}
	if !errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
		return nil, errors.Join(err, f.Close())
	}
	return nil, f.Close()
}
