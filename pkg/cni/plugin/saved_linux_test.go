package plugin

import (
	"errors"
	"io/fs"
	"os"
	"testing"
)

// The temporary file of an attachment is removed only with the lock of its saved file: an ADD
// that holds the lock may be writing it.
func TestTemporaryFileOfARunningADD(t *testing.T) {
	a := attachment{dir: t.TempDir(), id: "pod1", ifName: "eth0", network: "n"}
	for _, path := range []string{a.firstPath(), a.tempPath()} {
		if err := os.WriteFile(path, []byte(`{"name":"n"}`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	running, locked := tryLock(a.firstPath())
	if running == nil || !locked {
		t.Fatal("the file is not locked")
	}
	a.lock(t.Context(), 0).release()
	if _, err := os.Stat(a.tempPath()); err != nil {
		t.Errorf("while an ADD holds the lock: %v", err)
	}
	if err := running.Close(); err != nil {
		t.Fatal(err)
	}
	a.lock(t.Context(), 0).release()
	if _, err := os.Stat(a.tempPath()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("afterwards: %v", err)
	}
}
