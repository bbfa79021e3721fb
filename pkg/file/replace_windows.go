package file

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

// replace writes a temporary file and renames it. If overwrite is false, it fails
// with fs.ErrExist if path exists. It ignores the mode: on Windows, the name decides
// whether a file can be executed.
func replace(path string, content io.Reader, _ os.FileMode, overwrite bool) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".flannel-*")
	if err != nil {
		return withoutTemp(err, path)
	}
	_, err = io.Copy(f, content)
	err = withoutTemp(errors.Join(err, f.Sync(), f.Close()), path)
	if err == nil && overwrite {
		err = renameWithin(f.Name(), path, replaceWithin)
	} else if err == nil {
		err = moveNew(f.Name(), path)
	}
	if err != nil {
		err = errors.Join(err, withoutTemp(os.Remove(f.Name()), path))
	}
	return err
}

// moveNew renames a file. It fails with fs.ErrExist if to exists.
func moveNew(from, to string) error {
	source, err := windows.UTF16PtrFromString(from)
	if err != nil {
		return err
	}
	target, err := windows.UTF16PtrFromString(to)
	if err != nil {
		return err
	}
	return windows.MoveFileEx(source, target, 0)
}

// hasMode reports true: replace ignores the mode.
func hasMode(os.FileInfo, os.FileMode) bool { return true }

// inUse reports whether Windows returned an error for a file that other programs
// have open. Which of the two it is depends on how they opened it and on the version
// of Windows.
func inUse(err error) bool {
	return errors.Is(err, windows.ERROR_SHARING_VIOLATION) || errors.Is(err, windows.ERROR_ACCESS_DENIED)
}

// renameWithin renames over a file that other programs may have open. Windows
// refuses that while one of them opened it without FILE_SHARE_DELETE, as os.Open
// does, or while the file is executed; renameWithin retries until limit is over.
func renameWithin(from, to string, limit time.Duration) error {
	start := time.Now()
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		err := rename(from, to)
		switch {
		case !inUse(err):
			return err
		case time.Since(start) > limit:
			return fmt.Errorf("another program has kept it open for %v, or access is denied: %w", limit, err)
		}
		time.Sleep(pause)
	}
}

// rename replaces the file to. With POSIX semantics (Windows 10 and Server 2016 or
// later, NTFS) that also works while readers that opened it with FILE_SHARE_DELETE,
// such as virus scanners and backups, have it open; they go on to read the old file.
func rename(from, to string) error {
	if renamePOSIX(from, to) == nil { // whatever its error, the other way is tried, and that error counts
		return nil
	}
	return withoutTemp(os.Rename(from, to), to)
}

// renameInfo is FILE_RENAME_INFO with space for the longest path and its NUL
// (https://learn.microsoft.com/windows/win32/api/winbase/ns-winbase-file_rename_info).
type renameInfo struct {
	flags      uint32
	root       windows.Handle
	nameLength uint32 // bytes, without the NUL
	name       [windows.MAX_LONG_PATH]uint16
}

// renamePOSIX is rename with POSIX semantics. It fails where Windows or the file
// system does not have them.
func renamePOSIX(from, to string) error {
	full, err := filepath.Abs(to)
	if err != nil {
		return err
	}
	name, err := windows.UTF16FromString(full)
	if err != nil {
		return err
	}
	info := &renameInfo{flags: windows.FILE_RENAME_REPLACE_IF_EXISTS | windows.FILE_RENAME_POSIX_SEMANTICS}
	if len(name) > len(info.name) {
		return windows.ERROR_FILENAME_EXCED_RANGE
	}
	info.nameLength = uint32(2 * (copy(info.name[:], name) - 1))
	source, err := windows.UTF16PtrFromString(from)
	if err != nil {
		return err
	}
	share := uint32(windows.FILE_SHARE_READ | windows.FILE_SHARE_WRITE | windows.FILE_SHARE_DELETE)
	h, err := windows.CreateFile(source, windows.DELETE|windows.SYNCHRONIZE, share, nil, windows.OPEN_EXISTING, 0, 0)
	if err != nil {
		return err
	}
	defer windows.CloseHandle(h) //nolint:errcheck // nothing was written through it
	return windows.SetFileInformationByHandle(h, windows.FileRenameInfoEx, (*byte)(unsafe.Pointer(info)), uint32(unsafe.Sizeof(*info)))
}
