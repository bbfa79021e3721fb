package file

import (
	"os"
	"testing"
)

// openFiles counts the files that this process has open, wherever they are.
func openFiles(t *testing.T, _ string) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// inUse: no file is ever too busy to be opened.
func inUse(error) bool { return false }
