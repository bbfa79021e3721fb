package wine

import (
	"testing"

	"golang.org/x/sys/windows"

	"flannel/internal/test/hnstest"
)

// Play connects this process, which runs in Wine, to a simulated machine until
// the test ends. On a real Windows it skips the test.
func Play(t *testing.T, m *hnstest.Machine) {
	t.Helper()
	if windows.NewLazySystemDLL("ntdll.dll").NewProc("wine_get_version").Find() != nil {
		t.Skip("this is a real Windows, whose network tests must not change")
	}
	t.Setenv("FLANNEL_HNS", Listen(t, m))
}
