package file

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"flannel/internal/test/nstest"
)

// Linux limits the inotify instances of a user, in all containers together. Without
// one, Watch polls.
func TestWatchWithoutInotify(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "subnet.env")
		faults := nstest.NewFaults(t)
		faults.Fail(1, unix.EMFILE)
		changed, err := Watch(t.Context(), path)
		faults.Fail(0, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{"one", "another"} {
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			<-changed
		}
	})
}
