package probe

import (
	"path/filepath"

	"golang.org/x/sys/windows"
)

// program returns the path of a program of Windows. It is not looked for in PATH, which
// may contain directories of others.
func program(name string) string {
	dir, err := windows.GetSystemDirectory()
	if err != nil {
		dir = `C:\Windows\System32`
	}
	return filepath.Join(dir, name+".exe")
}
