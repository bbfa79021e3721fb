package e2e

import (
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"testing"

	"flannel/cmd/flannel-lab/lab"
)

// TestServiceManager listens on the socket of the service manager, as systemd
// does.
func TestServiceManager(t *testing.T) {
	t.Parallel()
	l := bare(t, lab.Options{Nodes: 1})
	n := l.Nodes[0]
	path := filepath.Join(t.TempDir(), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	must(t, err)
	defer socket.Close()
	var mu sync.Mutex
	var received []string
	go func() {
		for buf := make([]byte, 1000); ; {
			size, err := socket.Read(buf)
			if err != nil {
				return
			}
			mu.Lock()
			received = append(received, string(buf[:size]))
			mu.Unlock()
		}
	}()
	count := func(state string) (times int) {
		mu.Lock()
		defer mu.Unlock()
		for _, s := range received {
			if s == state {
				times++
			}
		}
		return times
	}
	n.Env = []string{"NOTIFY_SOCKET=" + path, "WATCHDOG_USEC=200000"}
	must(t, n.Start())
	logged(t, n, 0, "cause=no-config")
	heard := func(state string, times int) func() error {
		return func() error {
			if got := count(state); got < times {
				return fmt.Errorf("%s %d times, want %d", state, got, times)
			}
			return nil
		}
	}
	within(t, "WATCHDOG=1 while the node waits for a configuration", heard("WATCHDOG=1", 3))
	if count("READY=1") != 0 {
		t.Error("READY=1 was sent before there was a configuration")
	}
	must(t, l.SetConfig(t.Context(), l.Config(`{"Type":"vxlan"}`)))
	within(t, "READY=1", heard("READY=1", 1))
	within(t, "WATCHDOG=1 while the node works", heard("WATCHDOG=1", count("WATCHDOG=1")+5))
	in(t, n.Namespaces, "ip link delete flannel.1; sleep 0.2")
	stopped(t, n)
	within(t, "STOPPING=1", heard("STOPPING=1", 1))
	if count("READY=1") != 1 || count("STOPPING=1") != 1 {
		t.Errorf("systemd received %v", received)
	}
}
