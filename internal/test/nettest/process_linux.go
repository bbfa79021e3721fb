package nettest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// attach makes the kernel kill the process when the test dies, and gives it a
// process group of its own. If a process group contains a stopped process, the
// kernel may send SIGHUP and SIGCONT to all of the group when another of its
// processes ends (POSIX rule for orphaned process groups). That would end a
// pause, and would affect other tests that make runs at the same time.
func attach(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}

// pause returns when every thread has stopped. On a busy machine that takes a
// while.
func pause(p *os.Process) error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for end := time.Now().Add(10 * time.Minute); running(p.Pid); time.Sleep(time.Millisecond) { // it has no test
		if time.Now().After(end) {
			return fmt.Errorf("process %d did not stop", p.Pid)
		}
	}
	return nil
}

// running reports whether a process has a thread that is not stopped.
func running(pid int) bool {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid)) // the pattern is valid
	for _, task := range tasks {
		if stat, err := os.ReadFile(task); err == nil && !strings.Contains(string(stat), ") T ") &&
			!strings.Contains(string(stat), ") Z ") {
			return true
		}
	}
	return false
}

func resume(p *os.Process) error { return p.Signal(syscall.SIGCONT) }
