//go:build !windows

package file

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"
)

func replace(path string, text []byte, mode os.FileMode, over bool) (err error) {
	defer func() {
		// The name of the file beside it is another one each time, and nobody's concern: an error that lasts stays the same.
		if beside := (*fs.PathError)(nil); errors.As(err, &beside) {
			err = &fs.PathError{Op: beside.Op, Path: path, Err: beside.Err}
		}
	}()
	// Beside the file, for another directory may be another file system.
	f, err := renameio.NewPendingFile(path, renameio.WithTempDir(filepath.Dir(path)), renameio.WithStaticPermissions(mode))
	if err != nil {
		return err
	}
	defer f.Cleanup()
	if _, err := f.Write(text); err != nil {
		return err
	}
	if over {
		return f.CloseAtomicallyReplace()
	}
	if err := f.Sync(); err != nil {
		return err
	}
	// Unlike a rename this fails where path is.
	if err = os.Link(f.Name(), path); errors.Is(err, unix.EPERM) || errors.Is(err, errors.ErrUnsupported) {
		return f.CloseAtomicallyReplace() // the file system has no links
	}
	return err
}

func hasMode(info os.FileInfo, mode os.FileMode) bool { return info.Mode().Perm() == mode }
