package file

import (
	"errors"
	"io"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"
)

// replace writes a temporary file, in the same directory because a rename works only
// within a file system, and renames it. If overwrite is false, it fails with
// fs.ErrExist if path exists.
func replace(path string, content io.Reader, mode os.FileMode, overwrite bool) (err error) {
	defer func() { err = withoutTemp(err, path) }()
	f, err := renameio.NewPendingFile(path, renameio.WithTempDir(filepath.Dir(path)), renameio.WithStaticPermissions(mode))
	if err != nil {
		return err
	}
	defer f.Cleanup()
	if _, err := io.Copy(f, content); err != nil {
		return err
	}
	if overwrite {
		return f.CloseAtomicallyReplace()
	}
	if err := f.Sync(); err != nil {
		return err
	}
	// Unlike a rename, a link fails if path exists.
	if err = os.Link(f.Name(), path); errors.Is(err, unix.EPERM) || errors.Is(err, errors.ErrUnsupported) {
		return f.CloseAtomicallyReplace() // the file system has no hard links
	}
	return err
}

// hasMode reports whether a file has this mode.
func hasMode(info os.FileInfo, mode os.FileMode) bool { return info.Mode().Perm() == mode }
