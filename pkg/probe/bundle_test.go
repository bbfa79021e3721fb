package probe

import (
	"os"
	"path/filepath"
	"testing"
)

func TestTail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte("password=hunter2\nsecond\nthird\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for limit, want := range map[int64]string{100: "password=hunter2\nsecond\nthird\n", 30: "password=hunter2\nsecond\nthird\n", 20: "second\nthird\n", 9: "third\n", 3: ""} {
		if got, err := tail(path, limit); err != nil || string(got) != want {
			t.Errorf("the last %d: %q, %v", limit, got, err)
		}
	}
}
