package charon

import (
	"bufio"
	"errors"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// A process that ignores the signal is killed in the end, and one that does not is not.
func TestEnd(t *testing.T) {
	for script, want := range map[string]syscall.Signal{
		`trap "" TERM; echo; exec sleep 1000`: syscall.SIGKILL,
		`echo; exec sleep 1000`:               syscall.SIGTERM,
	} {
		cmd := exec.CommandContext(t.Context(), "sh", "-c", script)
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
		if err := end(cmd.Process.Pid, syscall.SIGTERM, limit); err != nil {
			t.Error(err)
		}
		exit, ok := errors.AsType[*exec.ExitError](cmd.Wait())
		if !ok || exit.Sys().(syscall.WaitStatus).Signal() != want {
			t.Errorf("%s: ended as %v, want signal %v", script, exit, want)
		}
	}
}
