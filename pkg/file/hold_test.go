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
	never := func(*HeldError) { t.Error("waits for nobody") }
	for _, who := range []string{strings.Repeat("long ", 100), strings.Repeat("ü", 150)} {
		release, err := Hold(t.Context(), path, who, never)
		if err != nil {
			t.Fatal(err)
		}
		if said := holder(path); said == "" || !strings.HasPrefix(who, said) {
			t.Errorf("held by %q, want the beginning of %q", said, who)
		}
		if err := release(); err != nil {
			t.Error(err)
		}
	}
	release, err := Hold(t.Context(), path, "PID 1\nof pod x", never)
	if err != nil {
		t.Fatal(err)
	}

	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
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
	gone, stop := context.WithCancel(t.Context())
	if _, err := Hold(gone, path, "PID 3", func(*HeldError) { stop() }); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
	last, err := Hold(t.Context(), path, "PID 4", func(*HeldError) { release() }) //nolint:errcheck // seen by the lock
	if err != nil {
		t.Fatalf("after the first was gone: %v", err)
	}
	if err := last(); err != nil { // Windows deletes no file that is open
		t.Error(err)
	}
}
