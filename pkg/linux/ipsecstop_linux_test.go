package linux

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"flannel/internal/test/eventually"
	"flannel/internal/test/nstest"
	"flannel/pkg/linux/charon"
)

// A charon of ours that listens and does not answer is ended by cleanup, by handback and with another backend.
func TestStopOfSilentCharon(t *testing.T) {
	if os.Getenv("STRONGSWAN_CONF") != "" { // the process that is started below; it never accepts the connection
		socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err := errors.Join(err, unix.Bind(socket, &unix.SockaddrUnix{Name: charon.Socket}), unix.Listen(socket, 1)); err != nil {
			t.Fatal(err)
		}
		fmt.Println()
		_, _ = io.ReadAll(os.Stdin)
		return
	}
	nstest.Run(t, func(t *testing.T) {
		m := newMachine(t)
		defer func() { m.Close() }()
		opts := m.opts
		opts.StateDir = t.TempDir()
		config, program := filepath.Join(opts.StateDir, "strongswan.conf"), filepath.Join(t.TempDir(), "charon")
		self, err := os.Executable()
		if err := errors.Join(err, os.Symlink(self, program)); err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			name   string
			full   bool // it cannot be connected to
			signal syscall.Signal
			end    func() error
		}{
			{"cleanup", false, unix.SIGTERM, func() error { _, err := Cleanup(t.Context(), opts, m.state, false); return err }},
			{"handback", true, unix.SIGKILL, func() error { _, err := Handback(t.Context(), opts, m.state, false); return err }},
			{"another backend", true, unix.SIGTERM, func() error {
				err := m.Close()
				if err == nil {
					m.Driver, err = New(opts)
				}
				if err != nil {
					t.Fatal(err)
				}
				return m.pass()
			}},
		} {
			cmd := exec.CommandContext(t.Context(), program, "-test.run=^"+t.Name()+"$")
			cmd.Env = []string{"STRONGSWAN_CONF=" + config}
			in, inErr := cmd.StdinPipe()
			out, outErr := cmd.StdoutPipe()
			if err := errors.Join(inErr, outErr, os.WriteFile(config, nil, 0o600), cmd.Start()); err != nil {
				t.Fatal(err)
			}
			if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
				t.Fatal(err)
			}
			for n := 0; c.full && n < 2; n++ { // two wait to be accepted
				conn, err := net.Dial("unix", charon.Socket)
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
			}
			if err := c.end(); err != nil || charon.MayRun(config) {
				t.Errorf("%s: %v, may run: %t", c.name, err, charon.MayRun(config))
			}
			_ = in.Close()
			exit, ok := errors.AsType[*exec.ExitError](cmd.Wait())
			if !ok || exit.Sys().(syscall.WaitStatus).Signal() != c.signal {
				t.Errorf("%s: it ended as %v, want %v", c.name, exit, c.signal)
			}
			if err := os.Remove(charon.Socket); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// Without an answer of another's charon, its connections are not taken for ended, also if one of ours may run. Then the
// error says what to do if it cannot be found out whose it is.
func TestSilentCharonOfOthers(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		config := filepath.Join(t.TempDir(), "strongswan.conf")
		listener, err := net.Listen("unix", charon.Socket)
		if err := errors.Join(err, os.WriteFile(config, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				_ = conn.Close()
			}
		}()
		faults := nstest.NewFaults(t)
		for _, needed := range []bool{false, true} {
			s := &ikeStore{config: config, used: func() bool { return true }, needed: func() bool { return needed }}
			says := false
			for n, met := 1, true; met; n++ { // the last one does not fail
				faults.Fail(n, unix.EMFILE)
				_, err := s.List(t.Context())
				if met = faults.Fail(0, 0) >= n; err == nil {
					t.Errorf("call %d, needed: %t: no error", n, needed)
					continue
				}
				says = says || strings.Contains(err.Error(), config)
			}
			if says == needed {
				t.Errorf("needed: %t, an error names the file: %t", needed, says)
			}
		}
	})
}

// A charon that does not listen in time is killed, and the log has its PID and output.
func TestCharonIsDeaf(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		config := filepath.Join(dir, "strongswan.conf")
		if err := syscall.Mkfifo(filepath.Join(dir, "never"), 0o600); err != nil {
			t.Fatal(err)
		}
		script := fmt.Sprintf("#!/bin/sh\ncd %s; [ ! -e former ] || exit 3\n>former; echo 'process' $$; read line <never\n", dir)
		if err := os.WriteFile(filepath.Join(dir, "charon-systemd"), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
		var log bytes.Buffer
		s := &ikeStore{log: slog.New(slog.NewTextHandler(&log, nil)), config: config}
		_, state, _, err := charon.Start(config, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		s.state = state
		output := ""
		eventually.True(t, "it runs", func() bool { output, _ = state(); return strings.HasSuffix(output, "\n") })
		startLimit = 0
		if err := s.start(); !errors.Is(err, charon.ErrNotRunning) || s.kills != 1 {
			t.Errorf("%v, %d were killed", err, s.kills)
		}
		pid := strings.TrimSpace(strings.TrimPrefix(output, "process "))
		if text := log.String(); !strings.Contains(text, "pids=["+pid+"]") || !strings.Contains(text, `output="process `+pid+`"`) {
			t.Errorf("process %s: the log has %s", pid, text)
		}
	})
}
