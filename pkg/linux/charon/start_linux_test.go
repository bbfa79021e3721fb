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
			if _, _, err := Start(config); !errors.Is(err, errPorts) || !errors.Is(err, syscall.EADDRINUSE) || MayRun(config) {
				t.Errorf("with port %d in use: %v, may run: %t", port, err, MayRun(config))
			}
			_ = conn.Close()
		}
		if program, _, err := Start(config); err != nil || program != filepath.Join(dir, "charon-systemd") || !MayRun(config) {
			t.Fatalf("%s, %v, may run: %t", program, err, MayRun(config))
		}
		var env []byte
		eventually.Nil(t, "the program is started", func() (err error) { env, err = os.ReadFile(out); return err })
		if text := string(env); strings.Contains(text, "hunter2") || !strings.Contains(text, "STRONGSWAN_CONF="+config+"\n") {
			t.Errorf("the environment is\n%s", text)
		}
	})
}

// One that ends says why, also if it prints more than is kept.
func TestEnded(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
		for script, want := range map[string]string{
			"echo 00[LIB] loads; echo '00[DMN] no plugin for VICI' >&2; exit 3": "exit status 3: no plugin for VICI",
			"kill -9 $$": "signal: killed: it printed nothing",
			"head -c 100000 /dev/zero | tr '\\0' x && echo; head -c 100000 /dev/zero; exit 4": "exit status 4: xxx",
		} {
			if err := os.WriteFile(filepath.Join(dir, "charon-systemd"), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			program, ended, err := Start(filepath.Join(dir, "strongswan.conf"))
			if err != nil || program == "" {
				t.Fatalf("%q, %v", program, err)
			}
			eventually.True(t, "it has ended", func() bool { return ended() != nil })
			if text := ended().Error(); !strings.Contains(text, want) || len(text) > 500 {
				t.Errorf("%s: %.500s, want %s", script, text, want)
			}
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
		// It does not end by itself; its exe is the shell, with one of charon's names.
		if err := os.WriteFile(filepath.Join(dir, "charon-systemd"), []byte("#!"+shell+"\necho $$ >"+dir+"/new && mv "+dir+"/new "+dir+"/pid; while :; do sleep 0.1; done\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
		for range 2 {
			if program, _, err := Start(config); err != nil || program == "" {
				t.Fatalf("%q, %v", program, err)
			}
			pid := 0
			eventually.True(t, "it has written its PID", func() bool {
				text, _ := os.ReadFile(filepath.Join(dir, "pid"))
				pid, _ = strconv.Atoi(strings.TrimSpace(string(text)))
				return pid != 0
			})
			if program, ended, err := Start(config); err != nil || program != "" || ended() != nil {
				t.Errorf("again: %q, %v", program, err)
			}
			if len(running(config+"2")) > 0 {
				t.Error("it has another configuration file")
			}
			if err := os.Remove(filepath.Join(dir, "pid")); err != nil {
				t.Fatal(err)
			}
			// After its time to start, it is ended, so that another one can be started.
			if starting, err := endDeaf(config, 0); err != nil || starting {
				t.Errorf("starting %t, %v", starting, err)
			}
			eventually.True(t, fmt.Sprintf("process %d has ended", pid), func() bool { return len(running(config)) == 0 })
		}
	})
}

// A process of another user can have charon's name and our variable, and does not keep charon from being started.
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
		for user, want := range map[uint32]bool{0: true, 65534: false} {
			cmd := exec.CommandContext(t.Context(), program, "-c", "echo; read line")
			cmd.Env = []string{"PATH=" + os.Getenv("PATH"), mark(config)}
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
			in, inErr := cmd.StdinPipe()
			out, outErr := cmd.StdoutPipe()
			if err := errors.Join(inErr, outErr, cmd.Start()); err != nil {
				t.Fatal(err)
			}
			if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
				t.Fatal(err)
			}
			if got := len(running(config)) > 0; got != want {
				t.Errorf("a process of user %d counts: %t", user, got)
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
