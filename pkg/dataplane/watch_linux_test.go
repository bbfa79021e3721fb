package dataplane

import (
	"log/slog"
	"testing"
	"time"

	"flannel/pkg/nstest"
)

// Closing does not wait for the watcher's time limit: a restart of the daemon would take as much longer.
func TestCloseIsPrompt(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		began := time.Now()
		const rounds = 20 // at the limit they would take 10 s
		for range rounds {
			d, err := New(Options{Log: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond) // the watcher waits now
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
		}
		took := time.Since(began)
		t.Logf("%d times open and closed in %v", rounds, took.Round(time.Millisecond))
		if took > 5*time.Second {
			t.Errorf("opening and closing %d times took %v", rounds, took)
		}
	})
}
