package status

import (
	"errors"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"flannel/internal/test/eventually"
	"flannel/internal/test/logtest"
	"flannel/internal/test/nstest"
)

// What is no stale socket is not removed: another kind of file, or another kind of socket, which has an owner.
func TestOnlyStaleSocketsAreRemoved(t *testing.T) {
	for name, create := range map[string]func(path string) error{
		"directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"file":      func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"FIFO":      func(path string) error { return unix.Mkfifo(path, 0o600) },
		"symlink":   func(path string) error { return os.Symlink("nothing", path) },
		"socket for datagrams": func(path string) error {
			c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
			if err == nil {
				t.Cleanup(func() { c.Close() })
			}
			return err
		},
	} {
		path := filepath.Join(t.TempDir(), "s")
		if err := create(path); err != nil {
			t.Fatal(err)
		}
		before, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		if s, err := listen(path); err == nil {
			s.Close()
			t.Errorf("the %s is replaced", name)
		} else if !logtest.Names(err.Error(), path) {
			t.Errorf("%s: the error does not name it: %v", name, err)
		}
		if after, err := os.Lstat(path); err != nil || !os.SameFile(before, after) {
			t.Errorf("the %s is gone: %v", name, err)
		}
	}
}

// Without a file descriptor, it is not known whether a socket has an owner.
func TestSocketIsNotKnown(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "s")
		owner, err := listen(path)
		if err != nil {
			t.Fatal(err)
		}
		defer owner.Close()
		faults := nstest.NewFaults(t)
		faults.Fail(1, unix.EMFILE) // of the connection
		_, err = listen(path)
		if exists, unknown := owner.exists(); !errors.Is(err, unix.EMFILE) || !exists {
			t.Errorf("the error is %v, and the owner has its socket: %t, %v", err, exists, unknown)
		}
	})
}

// A socket that cannot be restricted to its owner does not stay: to the next attempt, it would be a stale one.
func TestFailedListenLeavesNothing(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "s")
		faults := nstest.NewFaults(t)
		s, err := listen(path) // counts the calls
		if err != nil {
			t.Fatal(err)
		}
		calls := faults.Fail(0, 0)
		s.Close()
		for n := 1; n <= calls; n++ {
			faults.Fail(n, unix.EPERM)
			s, err := listen(path)
			if faults.Fail(0, 0); err == nil {
				s.Close() // the caller does without this call
			}
			if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("after call %d of %d failed, the socket is still there: %v", n, calls, err)
			}
		}
	})
}

// A socket that someone else has put in the place of the daemon's is noticed, and stays when the daemon ends.
func TestReplacedSocket(t *testing.T) {
	t.Parallel() // it waits for Keep, which checks every 5 s
	path := filepath.Join(t.TempDir(), "s")
	log, stop := keep(t, path, http.NotFoundHandler())
	eventually.Nil(t, "the daemon listens", func() error { _, err := Get(t.Context(), path, "/"); return err })
	other, err := listen(path + "2")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := os.Rename(path+"2", path); err != nil {
		t.Fatal(err)
	}
	other.path = path
	eventually.True(t, "it is noticed", func() bool { return loggedNoSocket(log, errTaken.Error(), path) })
	stop()
	if exists, err := other.exists(); !exists {
		t.Errorf("the daemon removed the other socket: %v", err)
	}
}
