//go:build !windows

package file

import (
	"os"
	"path/filepath"
	"testing"
)

// A repeated error has the same text: callers log it again only if it has changed.
func TestReplaceErrorIsStable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "gone", "subnet.env")
	first, second := Replace(path, nil), Replace(path, nil)
	if first == nil || second == nil || first.Error() != second.Error() || !os.IsNotExist(first) {
		t.Errorf("%v, and then %v", first, second)
	}
}
