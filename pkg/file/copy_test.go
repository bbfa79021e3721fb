package file

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// Copies of all sizes around that of the buffer are recognized, and nothing else is taken for one.
func TestCopy(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "new", "to")
	content := bytes.Repeat([]byte("0123456789abcde\n"), 3<<13)
	isCopy := func() bool {
		t.Helper()
		is, err := IsCopy(from, to, 0o755)
		if err != nil {
			t.Fatal(err)
		}
		return is
	}
	for _, size := range []int{0, 1, 64<<10 - 1, 64 << 10, 64<<10 + 1, 128 << 10, 3 << 17} {
		text := content[:size]
		if err := os.WriteFile(from, text, 0o644); err != nil {
			t.Fatal(err)
		}
		os.Remove(to)
		if isCopy() {
			t.Errorf("%d bytes: a missing file is a copy", size)
		}
		if err := Copy(from, to, 0o755); err != nil || !isCopy() || !holds(to, text, 0o755) {
			t.Errorf("%d bytes: %v, or another content or mode", size, err)
		}
		for what, other := range map[string][]byte{
			"longer": append(bytes.Clone(text), 'x'), "shorter": text[:max(0, size-1)], "changed at its end": append(bytes.Clone(text[:max(0, size-1)]), 'x'),
		} {
			if bytes.Equal(other, text) {
				continue // shorter than nothing
			}
			if err := Replace(to, other); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(to, 0o755); err != nil {
				t.Fatal(err)
			}
			if isCopy() {
				t.Errorf("%d bytes: a file that is %s is a copy", size, what)
			}
		}
	}
	os.Remove(from)
	if _, err := IsCopy(from, to, 0o755); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a source: %v", err)
	}
	before, err := os.ReadFile(to)
	if err != nil {
		t.Fatal(err)
	}
	if err := Copy(from, to, 0o755); !errors.Is(err, fs.ErrNotExist) || !holds(to, before, 0o755) {
		t.Errorf("without a source: %v, or the file was changed", err)
	}
}
