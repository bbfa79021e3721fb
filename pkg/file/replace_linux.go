package file

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"
)

// replace writes a temporary file, in the same directory because a rename works only
// within a file system, and renames it. If overwrite is false, it fails with
// fs.ErrExist if path exists. The error is ErrDirGone if the directory was deleted, but is still mounted.
func replace(path string, content io.Reader, mode os.FileMode, overwrite bool) (err error) {
	defer func() { err = withDirGone(withoutTemp(err, path), filepath.Dir(path)) }()
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

// withDirGone adds ErrDirGone to the error about a file in dir if dir was deleted, and is still there. A path that leads
// into no mount has no deleted directory, apart from the moment of the deletion: Mkdir waits until that is over.
func withDirGone(err error, dir string) error {
	if errors.Is(err, fs.ErrNotExist) && isDeleted(dir) && errors.Is(os.Mkdir(dir, 0o755), fs.ErrExist) && isDeleted(dir) {
		return fmt.Errorf("%w: %w", ErrDirGone, err)
	}
	return err
}

// isDeleted reports whether a directory has no name in its file system: the kernel then adds a suffix to the path of the
// open directory. Its number of links does not always say so: overlayfs reports 1 for a deleted directory that has a lower one.
func isDeleted(dir string) bool {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	path, _ := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	return strings.HasSuffix(path, " (deleted)")
}

// hasMode reports whether a file has this mode.
func hasMode(info os.FileInfo, mode os.FileMode) bool { return info.Mode().Perm() == mode }
