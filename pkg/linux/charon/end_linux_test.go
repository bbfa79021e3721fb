package charon

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"flannel/internal/test/nstest"
)

// A process that ignores the signal is killed in the end, and one that does not is not, also where there is no pidfd_open.
func TestEnd(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		faults := nstest.NewFaults(t)
		for _, errno := range []unix.Errno{0, unix.ENOSYS, unix.EPERM} {
			end := func(pid int, config string, sig syscall.Signal, limit time.Duration) error {
				if errno != 0 {
					faults.Fail(1, errno) // pidfd_open
				}
				err := end(pid, config, sig, limit)
				faults.Fail(0, 0)
				return err
			}
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
				_ = in.Close() // one that was not killed ends by itself
				exit, _ := errors.AsType[*exec.ExitError](cmd.Wait())
				if exit == nil || exit.Sys().(syscall.WaitStatus).Signal() != want {
					t.Errorf("%v: %s: ended as %v, want signal %v", errno, script, exit, want)
				}
			}
		}
	})
}
