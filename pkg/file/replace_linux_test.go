package file

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A repeated error has the same text: callers log it again only if it has changed.
func TestReplaceErrorIsStable(t *testing.T) {
	dir := t.TempDir()
	for name, path := range map[string]string{"create": filepath.Join(dir, "gone", "subnet.env"), "rename": dir} {
		first, second := Replace(path, nil), Replace(path, nil)
		if first == nil || second == nil || first.Error() != second.Error() || !strings.Contains(first.Error(), path+":") {
			t.Errorf("%s: %v, and then %v", name, first, second)
		}
	}
	if err := Replace(filepath.Join(dir, "gone", "subnet.env"), nil); !os.IsNotExist(err) {
		t.Errorf("%v", err)
	}
}
