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

// attach ends the process with the test, however that ends, and gives it a process group of its own. A group that
// contains a stopped process may get SIGHUP and SIGCONT from the kernel when another of its processes ends (POSIX's rule
// for orphaned process groups): that ended a pause, and programs of other tests that make runs at the same time.
func attach(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}

// pause returns when each thread stands still, which on a busy machine takes a while.
func pause(p *os.Process) error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for end := time.Now().Add(10 * time.Minute); running(p.Pid); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("process %d does not stop", p.Pid)
		}
	}
	return nil
}

// running reports whether a process has a thread that is not stopped.
func running(pid int) bool {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid)) // the pattern is well-formed
	for _, task := range tasks {
		if stat, err := os.ReadFile(task); err == nil && !strings.Contains(string(stat), ") T ") && !strings.Contains(string(stat), ") Z ") {
			return true
		}
	}
	return false
}

func resume(p *os.Process) error { return p.Signal(syscall.SIGCONT) }
