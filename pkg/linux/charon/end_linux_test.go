package charon

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// A process that ignores the signal is killed in the end, and one that does not is not.
func TestEnd(t *testing.T) {
	for script, want := range map[string]syscall.Signal{
		`trap "" TERM; echo; read line`: syscall.SIGKILL,
		`echo; read line`:               syscall.SIGTERM,
	} {
		cmd := exec.CommandContext(t.Context(), "sh", "-c", script)
		cmd.Env = append(os.Environ(), mark("config"))
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		limit := 5 * time.Minute
		if want == syscall.SIGKILL {
			limit = 10 * time.Millisecond
		}
		if err := end(cmd.Process.Pid, "other", syscall.SIGKILL, limit); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("another process than was looked for: %v", err)
		}
		if err := end(cmd.Process.Pid, "config", syscall.SIGTERM, limit); err != nil {
			t.Fatal(err)
		}
		exit, ok := errors.AsType[*exec.ExitError](cmd.Wait())
		if !ok || exit.Sys().(syscall.WaitStatus).Signal() != want {
			t.Errorf("%s: ended as %v, want signal %v", script, exit, want)
		}
	}
}
