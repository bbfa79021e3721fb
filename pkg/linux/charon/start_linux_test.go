package charon

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"flannel/internal/test/eventually"
	"flannel/internal/test/nstest"
)

// A program in the place of charon gets a configuration file and no environment of this process, unless another program
// has a port of IKE: charon would share the port with it, and take its packets.
func TestStart(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		config, out := filepath.Join(dir, "strongswan.conf"), filepath.Join(dir, "out")
		if err := os.WriteFile(filepath.Join(dir, "charon-systemd"), fmt.Appendf(nil, "#!/bin/sh\nenv >%[1]s.new && mv %[1]s.new %[1]s\n", out), 0o755); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
		t.Setenv("FLANNELD_SECRET", "hunter2")
		for _, port := range []int{500, 4500} {
			conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := Start(config, time.Hour); !errors.Is(err, errPorts) || !errors.Is(err, syscall.EADDRINUSE) || MayRun(config) {
				t.Errorf("with port %d in use: %v, may run: %t", port, err, MayRun(config))
			}
			_ = conn.Close()
		}
		if program, _, err := Start(config, time.Hour); err != nil || program != filepath.Join(dir, "charon-systemd") || !MayRun(config) {
			t.Fatalf("%s, %v, may run: %t", program, err, MayRun(config))
		}
		var env []byte
		eventually.Nil(t, "the program is started", func() (err error) { env, err = os.ReadFile(out); return err })
		if text := string(env); strings.Contains(text, "hunter2") || !strings.Contains(text, "STRONGSWAN_CONF="+config+"\n") {
			t.Errorf("the environment is\n%s", text)
		}
	})
}

// The state is why it has ended and what it has printed, also if that is more than is kept.
func TestState(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
		test := func(script, reason string, isRight func(output string) bool) {
			t.Helper()
			if err := os.WriteFile(filepath.Join(dir, "charon-systemd"), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			program, state, err := Start(filepath.Join(dir, "strongswan.conf"), time.Hour)
			if err != nil || program == "" {
				t.Fatalf("%q, %v", program, err)
			}
			eventually.True(t, "it has ended", func() bool { _, ended := state(); return ended != nil })
			if output, ended := state(); !strings.HasSuffix(ended.Error(), reason) || !isRight(output) {
				t.Errorf("%s: %v, %d bytes: %.500q", script, ended, len(output), output)
			}
		}
		test("echo one; echo two >&2; exit 3", "exit status 3", func(output string) bool { return output == "one\ntwo\n" })
		test("kill -9 $$", "signal: killed", func(output string) bool { return output == "" })
		test("i=0; while [ $i -lt 2000 ]; do echo 0123456789; i=$((i+1)); done 2>/dev/null; exit 4", "exit status 4",
			func(output string) bool { return len(output) > outputSize-20 && len(output) <= outputSize })
		if text := textOf(nil); text != "" { // as when no file could be created
			t.Errorf("%q", text)
		}
	})
}

// One that was started and does not listen yet is not started again.
func TestStartOnce(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		config, shell := filepath.Join(dir, "strongswan.conf"), filepath.Join(dir, "charon")
		program, err := os.ReadFile("/bin/sh")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(shell, program, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Mkfifo(filepath.Join(dir, "never"), 0o600); err != nil {
			t.Fatal(err)
		}
		// It does not end by itself, and has no children; its exe is the shell, with one of charon's names.
		if err := os.WriteFile(filepath.Join(dir, "charon-systemd"), []byte("#!"+shell+"\necho $$ >"+dir+"/pid; read line <"+dir+"/never\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
		// After its time to start, it is ended, and another one is started.
		for _, limit := range []time.Duration{time.Hour, 0} {
			former := running(config)
			if program, _, err := Start(config, limit); err != nil || program == "" {
				t.Fatalf("%q, %v", program, err)
			}
			pid := 0
			eventually.True(t, "it has written its PID", func() bool {
				text, _ := os.ReadFile(filepath.Join(dir, "pid"))
				pid, _ = strconv.Atoi(strings.TrimSpace(string(text)))
				return pid != 0
			})
			if _, still := former[pid]; still || len(running(config)) != 1 {
				t.Errorf("%v run, after %v", running(config), former)
			}
			if program, _, err := Start(config, time.Hour); err != nil || program != "" {
				t.Errorf("again: %q, %v", program, err)
			}
			if len(running(config+"2")) > 0 {
				t.Error("it has another configuration file")
			}
			if err := os.Remove(filepath.Join(dir, "pid")); err != nil {
				t.Fatal(err)
			}
		}
		// Stop ends it although no client can be connected to it.
		if err := Stop(nil, config, syscall.SIGTERM); err != nil || len(running(config)) > 0 || MayRun(config) {
			t.Errorf("%v; %v run", err, running(config))
		}
	})
}

// A process of another user, or with another file of this path, can have charon's name and our variable, and does not
// keep charon from being started.
func TestProcessesOfOthers(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		config, program := filepath.Join(dir, "strongswan.conf"), filepath.Join(dir, "charon")
		shell, err := os.ReadFile("/bin/sh")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(program, shell, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil { // the other user may search it
			t.Fatal(err)
		}
		for _, c := range []struct {
			user    uint32
			unshare uintptr
			script  string // runs first
			want    bool
		}{
			{0, 0, "", true},
			{65534, 0, "", false},
			{0, syscall.CLONE_NEWNS, "", true},
			{0, syscall.CLONE_NEWNS, "mount -t tmpfs none " + dir + " && ", false},
			{0, syscall.CLONE_NEWNS, "mount -t tmpfs none " + filepath.Dir(Socket) + " && ", false},
		} {
			cmd := exec.CommandContext(t.Context(), program, "-c", c.script+"echo && read line")
			cmd.Env = []string{"PATH=" + os.Getenv("PATH"), mark(config)}
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: c.user, Gid: c.user}, Unshareflags: c.unshare}
			in, inErr := cmd.StdinPipe()
			out, outErr := cmd.StdoutPipe()
			if err := errors.Join(inErr, outErr, cmd.Start()); err != nil {
				t.Fatal(err)
			}
			if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
				t.Fatal(err)
			}
			if got := len(running(config)) > 0; got != c.want {
				t.Errorf("%+v: it counts: %t", c, got)
			}
			if runs, err := age(cmd.Process.Pid); err != nil || runs < 0 || runs > 5*time.Minute {
				t.Errorf("it has been running for %v, %v", runs, err)
			}
			if err := errors.Join(in.Close(), cmd.Process.Kill()); err != nil {
				t.Error(err)
			}
			_ = cmd.Wait()
		}
		if _, err := age(1 << 30); err == nil {
			t.Error("a process that does not exist has an age")
		}
	})
}
