package file

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"
)

func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := Lock(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond) // it is held
	defer cancel()
	if _, err := Lock(short, path); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a second lock: %v", err)
	}
	got := make(chan error, 1)
	go func() {
		unlock, err := Lock(t.Context(), path)
		if err == nil {
			err = unlock()
		}
		got <- err
	}()
	if err := unlock(); err != nil {
		t.Error(err)
	}
	if err := <-got; err != nil {
		t.Errorf("after the first was released: %v", err)
	}
	if _, err := Lock(t.Context(), filepath.Join(path, "none", "lock")); err == nil {
		t.Error("locked a file in a directory that cannot exist")
	}
}
