package linux

import (
	"log/slog"
	"testing"
	"time"

	"flannel/internal/test/nstest"
	"flannel/pkg/dataplane/driver"
)

// Closing does not wait for the watcher's time limit, which is a day here: a restart of the daemon would take as much
// longer.
func TestCloseIsPrompt(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		for range 20 {
			d, err := New(driver.Options{Log: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			if err := d.watcher.conn.SetLimit(24 * time.Hour); err != nil {
				t.Fatal(err)
			}
			d.watcher.conn.Rouse()            // the limit counts from the next time that it waits
			time.Sleep(10 * time.Millisecond) // it waits now, usually; the test passes as well if it does not yet
			closed := make(chan error, 1)
			go func() { closed <- d.Close() }()
			select {
			case err := <-closed:
				if err != nil {
					t.Fatal(err)
				}
			case <-time.After(2 * time.Minute):
				t.Fatal("closing waits for the watcher")
			}
		}
	})
}
