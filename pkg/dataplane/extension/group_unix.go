//go:build !windows

package extension

import (
	"os/exec"
	"syscall"
)

// runGroup runs a command. When its context ends, the command is killed together
// with the processes of its group.
func runGroup(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd.Run()
}
