package install

import (
	"errors"
	"log/slog"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"flannel/internal/test/nstest"
	"flannel/pkg/file"
)

// In a container, a directory that the host deletes cannot be written to again.
func TestKeepEndsWithoutDirectory(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		n := newNode(t)
		host, container := n.path("host"), n.path("net.d")
		n.must(errors.Join(os.Mkdir(host, 0o755), os.Mkdir(container, 0o755)))
		n.must(unix.Mount(host, container, "", unix.MS_BIND, ""))
		t.Cleanup(func() { _ = unix.Unmount(container, unix.MNT_DETACH) })
		ended := make(chan error, 1)
		go func() { ended <- n.Keep(t.Context(), slog.New(n.log)) }()
		n.until("installed", func() bool { return n.read(recordOf(n.ConfTo)) == source })
		n.until("deleted", func() bool { return os.RemoveAll(host) == nil }) // Keep may write a file before it is empty
		n.must(os.Mkdir(host, 0o755))
		if err := <-ended; !errors.Is(err, file.ErrDirGone) {
			t.Error(err)
		}
	})
}
