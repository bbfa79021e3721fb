package wine

import (
	"testing"

	"golang.org/x/sys/windows"

	"flannel/pkg/hns/hnstest"
)

// Play lets this process take a machine for the Windows that it runs on, by the DLLs, until the test ends. On a real
// Windows it skips the test.
func Play(t *testing.T, m *hnstest.Machine) {
	t.Helper()
	if windows.NewLazySystemDLL("ntdll.dll").NewProc("wine_get_version").Find() != nil {
		t.Skip("this is a real Windows, whose network a test must not touch")
	}
	t.Setenv("FLANNEL_HNS", Listen(t, m))
}
