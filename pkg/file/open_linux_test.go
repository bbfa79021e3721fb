package file

import (
	"os"
	"testing"
)

// openFiles counts the open files of this process, in any directory.
func openFiles(t *testing.T, _ string) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// inUse reports false: on Linux a file can be opened whoever has it open.
func inUse(error) bool { return false }
