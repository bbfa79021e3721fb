package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"flannel/internal/test/eventually"
	"flannel/pkg/status"
)

// pseudoTerminal is a terminal that a test looks at.
type pseudoTerminal struct {
	master, slave *os.File
	mu            sync.Mutex
	shown         []byte
}

func openTerminal(t *testing.T, columns, lines uint16) *pseudoTerminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { slave.Close() })
	p := &pseudoTerminal{master: master, slave: slave}
	p.resize(t, columns, lines)
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf)
			p.mu.Lock()
			p.shown = append(p.shown, buf[:n]...)
			p.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return p
}

func (p *pseudoTerminal) resize(t *testing.T, columns, lines uint16) {
	t.Helper()
	if err := unix.IoctlSetWinsize(int(p.slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: lines, Col: columns}); err != nil {
		t.Fatal(err)
	}
}

// text returns all that the terminal was sent.
func (p *pseudoTerminal) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return string(p.shown)
}

// frames returns the rows of each whole picture. The terminal makes "\r\n" of "\n".
func (p *pseudoTerminal) frames() (all [][]string) {
	pictures := strings.Split(p.text(), toTop)
	for _, picture := range pictures[1:] {
		if whole, _, ok := strings.Cut(picture, endFrame); ok {
			all = append(all, strings.Split(strings.ReplaceAll(whole, endLine, ""), "\r\n"))
		}
	}
	return all
}

// until waits until the last picture is as wanted.
func (p *pseudoTerminal) until(t *testing.T, what string, wanted func(rows []string) bool) {
	t.Helper()
	eventually.Nil(t, what, func() error {
		all := p.frames()
		if len(all) > 0 && wanted(all[len(all)-1]) {
			return nil
		}
		return fmt.Errorf("the terminal shows %q", all[max(0, len(all)-1):])
	})
}

func widest(rows []string) (n int) {
	for _, row := range rows {
		n = max(n, utf8.RuneCountInString(row))
	}
	return n
}

func shows(text string) func([]string) bool {
	return func(rows []string) bool { return strings.Contains(strings.Join(rows, "\n"), text) }
}

// TestWatch follows a daemon in a real terminal: the picture changes with the
// daemon and with the terminal's size, is never cleared, and Ctrl-C leaves the
// terminal as it was.
func TestWatch(t *testing.T) {
	subnetFile := filepath.Join(t.TempDir(), "subnet.env")
	p := openTerminal(t, 100, 50)
	cmd := exec.Command("/proc/self/exe", "--subnet-file="+subnetFile, "status", "--watch", "--interval=10ms")
	cmd.Env = append(os.Environ(), beFlanneld+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = p.slave, p.slave, p.slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill() //nolint:errcheck // it has ended, unless the test failed
	p.until(t, "no daemon yet", shows(status.ErrNotRunning.Error()))

	var mu sync.Mutex
	peers := []status.Peer{{Name: "node-a", State: "in-step", Reason: strings.Repeat("ä", 200)}}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		board := &status.Board{}
		board.EndPass(nil)
		board.Add(status.OfPeers, func(r *status.Report) {
			mu.Lock()
			defer mu.Unlock()
			r.Peers = slices.Clone(peers)
		})
		ended <- status.Keep(ctx, status.Socket(subnetFile), status.Handler(board, func() []byte { return nil }, func() int { return 0 }, http.NotFoundHandler()), slog.New(slog.DiscardHandler))
	}()
	defer func() { cancel(); <-ended }()
	p.until(t, "a peer", shows("node-a"))
	p.until(t, "the columns of tunnels", shows("HANDSHAKE"))
	p.until(t, "cut at the width", func(rows []string) bool { return shows("node-a")(rows) && widest(rows) == 99 })
	mu.Lock()
	for i := range 100 {
		peers = append(peers, status.Peer{Name: fmt.Sprintf("node-%d", i), State: "behind"})
	}
	mu.Unlock()
	p.until(t, "as many rows as there are", func(rows []string) bool { return len(rows) == 50 && strings.HasSuffix(rows[49], " more lines") })
	p.resize(t, 40, 20)
	p.until(t, "the new size", func(rows []string) bool { return len(rows) == 20 && widest(rows) == 39 })

	if _, err := p.master.Write([]byte{3}); err != nil { // Ctrl-C
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the exit after Ctrl-C: %v", err)
	}
	eventually.True(t, "the terminal is restored", func() bool { return strings.HasSuffix(p.text(), leaveScreen) })
	if text := p.text(); !strings.HasPrefix(text, enterScreen) || strings.Contains(text, "\x1b[2J") {
		t.Errorf("the terminal was cleared, or the first it got was %q", text[:min(len(text), 100)])
	}
}

// Without a terminal, or with --json, there is nothing to watch.
func TestWatchRefused(t *testing.T) {
	for _, args := range [][]string{{"--watch"}, {"--watch", "--json"}} {
		var out, err bytes.Buffer
		if code := run(t.Context(), process{args: append([]string{"status"}, args...), stdout: &out, stderr: &err}); code != exitUsage {
			t.Errorf("%v: exit code %d, %s%s", args, code, &out, &err)
		}
	}
}
