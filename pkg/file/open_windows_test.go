package file

import (
	"testing"

	"golang.org/x/sys/windows"
)

// openFiles returns 1 if any program has the directory open, else 0.
func openFiles(t *testing.T, dir string) int {
	t.Helper()
	path, err := windows.UTF16PtrFromString(dir)
	if err != nil {
		t.Fatal(err)
	}
	h, err := windows.CreateFile(path, windows.FILE_LIST_DIRECTORY, 0, nil, windows.OPEN_EXISTING, windows.FILE_FLAG_BACKUP_SEMANTICS, 0)
	if inUse(err) {
		return 1
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := windows.CloseHandle(h); err != nil {
		t.Fatal(err)
	}
	return 0
}
