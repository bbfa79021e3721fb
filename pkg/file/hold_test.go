package file

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestHold(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "lock")
	never := func(*HeldError) { t.Error("waits for a lock that is free") }
	for _, who := range []string{strings.Repeat("long ", 100), strings.Repeat("ü", 150)} {
		release, err := Hold(t.Context(), path, who, never)
		if err != nil {
			t.Fatal(err)
		}
		if read := holder(path); read == "" || !strings.HasPrefix(who, read) {
			t.Errorf("held by %q, want the beginning of %q", read, who)
		}
		if err := release(); err != nil {
			t.Error(err)
		}
	}
	release, err := Hold(t.Context(), path, "PID 1\nof pod x", never)
	if err != nil {
		t.Fatal(err)
	}

	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond) // it is held
	defer cancel()
	waited := 0
	_, err = Hold(short, path, "PID 2", func(e *HeldError) {
		if waited++; e.Holder != "PID 1 of pod x" {
			t.Errorf("waits for %q", e.Holder)
		}
	})
	var held *HeldError
	if !errors.As(err, &held) || held.Path != path || held.Holder != "PID 1 of pod x" || waited != 1 {
		t.Errorf("%v, waited %d times", err, waited)
	}
	canceled, stop := context.WithCancel(t.Context())
	if _, err := Hold(canceled, path, "PID 3", func(*HeldError) { stop() }); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
	last, err := Hold(t.Context(), path, "PID 4", func(*HeldError) { release() }) //nolint:errcheck // if it fails, Hold does
	if err != nil {
		t.Fatalf("after the first was released: %v", err)
	}
	if err := last(); err != nil { // Windows cannot delete an open file
		t.Error(err)
	}
}
