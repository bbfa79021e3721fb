package charon

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

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
			if _, _, _, err := Start(config, time.Hour); !errors.Is(err, errPorts) || !errors.Is(err, syscall.EADDRINUSE) || MayRun(config) {
				t.Errorf("with port %d in use: %v, may run: %t", port, err, MayRun(config))
			}
			_ = conn.Close()
		}
		path := os.Getenv("PATH")
		broken := t.TempDir()
		if err := os.WriteFile(filepath.Join(broken, "charon-systemd"), []byte("not a program"), 0o755); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", broken)
		if _, _, _, err := Start(config, time.Hour); !errors.Is(err, syscall.ENOEXEC) || MayRun(config) {
			t.Errorf("a broken program: %v, may run: %t", err, MayRun(config))
		}
		t.Setenv("PATH", path)
		if program, _, _, err := Start(config, time.Hour); err != nil || program != filepath.Join(dir, "charon-systemd") || !MayRun(config) {
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
			program, state, _, err := Start(filepath.Join(dir, "strongswan.conf"), time.Hour)
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
		if text := textOf(nil); text == "" { // as when no file could be created
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
		// It does not end by itself, and has no children.
		if err := os.WriteFile(filepath.Join(dir, "charon-systemd"), []byte("#!"+shell+"\necho $$ >"+dir+"/pid; read line <"+dir+"/never\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
		// After its time to start, it is killed, and another one is started.
		for _, limit := range []time.Duration{time.Hour, 0} {
			former := pids(t, config)
			if program, _, killed, err := Start(config, limit); err != nil || program == "" || !slices.Equal(killed, former) {
				t.Fatalf("%q, killed %v of %v, %v", program, killed, former, err)
			}
			pid := 0
			eventually.True(t, "it has written its PID", func() bool {
				text, _ := os.ReadFile(filepath.Join(dir, "pid"))
				pid, _ = strconv.Atoi(strings.TrimSpace(string(text)))
				return pid != 0
			})
			if now := pids(t, config); slices.Contains(former, pid) || !slices.Equal(now, []int{pid}) {
				t.Errorf("%v run, after %v", now, former)
			}
			if program, _, killed, err := Start(config, time.Hour); err != nil || program != "" || killed != nil {
				t.Errorf("again: %q, killed %v, %v", program, killed, err)
			}
			if len(pids(t, config+"2")) > 0 {
				t.Error("it has another configuration file")
			}
			if err := os.Remove(filepath.Join(dir, "pid")); err != nil {
				t.Fatal(err)
			}
		}
		// Stop ends it although no client can be connected to it, and an upgrade has replaced its file.
		if err := os.Remove(shell); err != nil {
			t.Fatal(err)
		}
		if len(pids(t, config)) != 1 {
			t.Error("it is not found after an upgrade")
		}
		if err := Stop(config, syscall.SIGTERM); err != nil || len(pids(t, config)) > 0 || MayRun(config) {
			t.Errorf("%v; %v run", err, pids(t, config))
		}
	})
}

// pids returns the PIDs of running.
func pids(t *testing.T, config string) []int {
	t.Helper()
	all, err := running(config)
	if err != nil {
		t.Error(err)
	}
	return slices.Sorted(maps.Keys(all))
}

// startMarked starts a shell under charon's name, with the mark of config, in the directory of config. It waits until the
// shell runs. wait ends it, and waits for its end.
func startMarked(t *testing.T, config string) (wait func()) {
	t.Helper()
	program := filepath.Join(filepath.Dir(config), "charon")
	shell, err := os.ReadFile("/bin/sh")
	if err := errors.Join(err, os.WriteFile(program, shell, 0o755), os.WriteFile(config, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "-c", "echo && read line")
	cmd.Env = []string{mark(config)}
	in, inErr := cmd.StdinPipe()
	out, outErr := cmd.StdoutPipe()
	if err := errors.Join(inErr, outErr, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil { // until execve is complete, it has no mark
		t.Fatal(err)
	}
	return func() { _, _ = in.Close(), cmd.Wait() }
}

// A process with charon's name that Stop may not read, as in a container without CAP_SYS_PTRACE, may be ours: the file
// stays, so that Stop is tried again.
func TestStopCannotRead(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		config := filepath.Join(t.TempDir(), "strongswan.conf")
		defer startMarked(t, config)()
		runtime.LockOSThread() // capabilities are those of a thread
		defer runtime.UnlockOSThread()
		head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var all [2]unix.CapUserData
		if err := unix.Capget(&head, &all[0]); err != nil {
			t.Fatal(err)
		}
		less := all
		less[0].Effective &^= 1 << unix.CAP_SYS_PTRACE
		if err := unix.Capset(&head, &less[0]); err != nil {
			t.Fatal(err)
		}
		stopErr := Stop(config, syscall.SIGTERM)
		_, _, startErr := endDeaf(config, time.Hour)
		faults := nstest.NewFaults(t)
		for n, met := 1, true; met; n++ { // if a call fails, Start must not start another one
			faults.Fail(n, unix.EMFILE)
			_, _, err := endDeaf(config, time.Hour)
			if met = faults.Fail(0, 0) >= n; errors.Is(err, fs.ErrPermission) == met || errors.Is(err, unix.EMFILE) != met {
				t.Errorf("call %d fails: %t: %v", n, met, err)
			}
		}
		if err := unix.Capset(&head, &all[0]); err != nil {
			t.Fatal(err)
		}
		if !errors.Is(stopErr, fs.ErrPermission) || !MayRun(config) || !errors.Is(startErr, fs.ErrPermission) {
			t.Errorf("%v, may run: %t; %v", stopErr, MayRun(config), startErr)
		}
		if err := Stop(config, syscall.SIGTERM); err != nil || MayRun(config) {
			t.Errorf("%v, may run: %t", err, MayRun(config))
		}
	})
}

// Whichever file cannot be opened, Stop keeps the file or ends the process, and Start takes no process for another's.
func TestStopFaults(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		config := filepath.Join(t.TempDir(), "strongswan.conf")
		wait := startMarked(t, config)
		faults := nstest.NewFaults(t)
		for _, errno := range []unix.Errno{unix.ENOSYS, unix.EPERM, unix.EAGAIN} {
			faults.Fail(2, errno) // openat2, after the open of the root
			same, err := shares(os.Getpid(), filepath.Dir(config))
			if calls := faults.Fail(0, 0); calls != 2 || !same || err != nil {
				t.Errorf("%v in one of %d calls: %t, %v", errno, calls, same, err)
			}
		}
		for n, met := 1, true; met; n++ { // the last one does not fail
			faults.Fail(n, unix.EMFILE)
			starting, _, err := endDeaf(config, time.Hour)
			if met = faults.Fail(0, 0) >= n; !starting && err == nil {
				t.Errorf("call %d: it is not found", n)
			}
		}
		for n, met := 1, true; met; n++ {
			faults.Fail(n, unix.EMFILE)
			err := Stop(config, syscall.SIGTERM)
			met = faults.Fail(0, 0) >= n
			switch run := len(pids(t, config)); {
			case (err == nil) == MayRun(config), err == nil && run > 0:
				t.Errorf("call %d: %v, may run: %t; %d run", n, err, MayRun(config), run)
			case run == 0:
				wait()
				wait = startMarked(t, config)
			}
		}
		wait()
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
		parent, link := filepath.Dir(dir), filepath.Join(t.TempDir(), "link")
		if err := os.Symlink(dir, link); err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			user     uint32
			unshare  uintptr
			script   string // runs first
			ours     bool
			starting bool // it may begin to listen on our socket
		}{
			{0, 0, "", true, true},
			{65534, 0, "", false, false},
			{0, syscall.CLONE_NEWNS, "", true, true},
			{0, syscall.CLONE_NEWNS, "mount -t tmpfs none " + dir + " && ", false, false},
			{0, syscall.CLONE_NEWNS, "mount -t tmpfs none " + parent + " && ln -s " + link + " " + dir + " && ", false, false},
			{0, syscall.CLONE_NEWNS, "mount --bind " + dir + " /mnt && mount -t tmpfs none " + parent + " && ln -s /mnt " + dir + " && ", true, true},
			{0, syscall.CLONE_NEWNS, "mount -t tmpfs none " + filepath.Dir(Socket) + " && ", true, false},
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
			if got := len(pids(t, config)) > 0; got != c.ours {
				t.Errorf("%+v: it is ours: %t", c, got)
			}
			if got, killed, err := endDeaf(config, time.Hour); got != c.starting || killed != nil || err != nil {
				t.Errorf("%+v: it is starting: %t; killed %v, %v", c, got, killed, err)
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
