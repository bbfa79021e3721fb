// Package filetest changes the owners of files, for tests on Windows.
package filetest

import (
	"os"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

// Users of the system under Wine.
const (
	nobody = "65534"
	root   = "0" // who runs the tests
)

// GiveAway makes a file belong to somebody who is not an administrator.
func GiveAway(t testing.TB, path string) {
	t.Helper()
	chown(t, nobody, path)
}

// TakeBack makes a file belong to the user of this process again.
func TakeBack(t testing.TB, path string) {
	t.Helper()
	chown(t, root, path)
}

// chown needs Wine, which cannot change the owner of a file by the functions of
// Windows.
func chown(t testing.TB, user, path string) {
	t.Helper()
	kernel := windows.NewLazySystemDLL("kernel32.dll")
	text, err := windows.UTF16PtrFromString(path)
	if err != nil {
		t.Fatal(err)
	}
	name, _, err := kernel.NewProc("wine_get_unix_file_name").Call(uintptr(unsafe.Pointer(text)))
	if name == 0 {
		t.Fatal(path, err)
	}
	before := owner(t, path)
	file := windows.BytePtrToString(*(**byte)(unsafe.Pointer(&name)))
	if _, err := os.StartProcess(`Z:\usr\bin\chown`, []string{"chown", user, file}, &os.ProcAttr{Files: make([]*os.File, 3)}); err != nil {
		t.Fatal(err)
	}
	for owner(t, path) == before { // a process of the system cannot be waited for
		time.Sleep(time.Millisecond) // until then
	}
}

func owner(t testing.TB, path string) string {
	t.Helper()
	descriptor, err := windows.GetNamedSecurityInfo(path, windows.SE_FILE_OBJECT, windows.OWNER_SECURITY_INFORMATION)
	if err != nil {
		t.Fatal(err)
	}
	sid, _, err := descriptor.Owner()
	if err != nil {
		t.Fatal(err)
	}
	return sid.String()
}
