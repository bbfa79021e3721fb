package hnstest

import (
	"testing"

	"golang.org/x/sys/windows"
)

// Play lets this process take the machine for the Windows that it runs on, by the DLLs, until the test ends. On a real
// Windows it skips the test.
func (m *Machine) Play(t *testing.T) {
	t.Helper()
	if windows.NewLazySystemDLL("ntdll.dll").NewProc("wine_get_version").Find() != nil {
		t.Skip("this is a real Windows, whose network a test must not touch")
	}
	t.Setenv("FLANNEL_HNS", m.Listen(t))
}
