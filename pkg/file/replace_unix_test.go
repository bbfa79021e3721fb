//go:build !windows

package file

import (
	"os"
	"path/filepath"
	"testing"
)

// A failure reads the same each time, for who tells of it tells what is new.
func TestReplaceFailsInTheSameWords(t *testing.T) {
	path := filepath.Join(t.TempDir(), "gone", "subnet.env")
	first, second := Replace(path, nil), Replace(path, nil)
	if first == nil || second == nil || first.Error() != second.Error() || !os.IsNotExist(first) {
		t.Errorf("%v, and then %v", first, second)
	}
}
