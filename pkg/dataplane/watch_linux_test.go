package dataplane

import (
	"log/slog"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"flannel/pkg/nstest"
)

// Closing does not wait for the watcher's time limit, which is a day here: a restart of the daemon would take as much
// longer.
func TestCloseIsPrompt(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		for range 20 {
			d, err := New(Options{Log: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			limit := unix.NsecToTimeval((24 * time.Hour).Nanoseconds())
			if err := unix.SetsockoptTimeval(d.watcher.conn.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
				t.Fatal(err)
			}
			d.watcher.conn.rouse() // the limit counts from the next time that it waits
			time.Sleep(10 * time.Millisecond)
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
