package machine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// Process is a long-running program in a machine, with a log file there.
type Process struct {
	on   *Machine
	cmd  *exec.Cmd
	file string // the log, in the machine
	done chan struct{}
}

// StartProcess starts a program whose output goes to a log file below /run.
func StartProcess(on *Machine, cmd *exec.Cmd, logName string) (*Process, error) {
	p := &Process{on: on, cmd: cmd, file: "/run/" + logName, done: make(chan struct{})}
	var out *os.File
	err := on.Do(func() (err error) {
		out, err = os.OpenFile(p.file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		return err
	})
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a Ctrl-C on the terminal is for the lab
	if err := on.Start(cmd); err != nil {
		return nil, fmt.Errorf("start %s on %s: %w", filepath.Base(cmd.Path), on.Name, err)
	}
	go func() {
		_ = cmd.Wait() // its outcome is in ProcessState
		close(p.done)
	}()
	return p, nil
}

// Running reports whether it runs.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Signal returns after SIGSTOP when the process stands still.
func (p *Process) Signal(s syscall.Signal) error {
	err := p.cmd.Process.Signal(s)
	if err == nil && s == syscall.SIGSTOP {
		_, err = Until(context.Background(), Longest, func(context.Context) error { return p.still() })
	}
	return err
}

// still is an error while a thread of a process that was stopped goes on, which on a busy machine it does for a while.
func (p *Process) still() error {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.cmd.Process.Pid))
	for _, task := range tasks {
		if stat, err := os.ReadFile(task); err == nil && !strings.Contains(string(stat), ") T ") && p.Running() {
			return fmt.Errorf("it runs: %s", stat)
		}
	}
	return err
}

// Wait returns the exit status as a shell would tell it (128 + signal).
func (p *Process) Wait(ctx context.Context) (int, error) {
	select {
	case <-p.done:
		return Status(p.cmd.ProcessState.Sys().(syscall.WaitStatus)), nil
	case <-ctx.Done():
		return -1, fmt.Errorf("wait for %s to end: %w", filepath.Base(p.cmd.Path), ctx.Err())
	}
}

// Stop sends s and waits; SIGCONT wakes one that was paused.
func (p *Process) Stop(ctx context.Context, s syscall.Signal) (int, error) {
	for _, s := range []syscall.Signal{s, syscall.SIGCONT} {
		if err := p.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return -1, err
		}
	}
	return p.Wait(ctx)
}

// Log is what it has written so far.
func (p *Process) Log() string {
	data, err := p.on.ReadFile(p.file)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// PID is the process's as this one sees it.
func (p *Process) PID() int { return p.cmd.Process.Pid }
