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

// Process is a long-running program in a machine, with a log file there. It is a child
// of this process, in the machine's namespaces: PowerOff of the machine ends it. Several
// goroutines may call its methods at once.
type Process struct {
	on   *Machine
	cmd  *exec.Cmd
	file string        // path of the log in the machine
	done chan struct{} // closed when the program has ended and cmd.ProcessState is set
}

// StartProcess starts a program and appends its output to /run/logName in the
// machine.
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
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C on the terminal must not reach it
	if err := on.Start(cmd); err != nil {
		return nil, fmt.Errorf("start %s on %s: %w", filepath.Base(cmd.Path), on.Name, err)
	}
	go func() {
		_ = cmd.Wait() // the result is in ProcessState
		close(p.done)
	}()
	return p, nil
}

// Running reports whether the program is running.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Signal sends a signal. With SIGSTOP it returns when every thread has stopped.
func (p *Process) Signal(s syscall.Signal) error {
	err := p.cmd.Process.Signal(s)
	if err == nil && s == syscall.SIGSTOP {
		_, err = Until(context.Background(), Longest, func(context.Context) error { return p.stopped() })
	}
	return err
}

// stopped returns an error while a thread is not stopped. On a busy machine
// this takes a while after SIGSTOP.
func (p *Process) stopped() error {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.cmd.Process.Pid))
	for _, task := range tasks {
		// Threads that have ended are ignored.
		if stat, err := os.ReadFile(task); err == nil && !strings.Contains(string(stat), ") T ") && p.Running() {
			return fmt.Errorf("still running: %s", stat)
		}
	}
	return err
}

// Wait waits until the program has ended and returns its exit status (see
// Status).
func (p *Process) Wait(ctx context.Context) (int, error) {
	select {
	case <-p.done:
		return Status(p.cmd.ProcessState.Sys().(syscall.WaitStatus)), nil
	case <-ctx.Done():
		return -1, fmt.Errorf("wait for %s to end: %w", filepath.Base(p.cmd.Path), ctx.Err())
	}
}

// Stop sends s, waits until the program has ended, and returns its exit status. It
// also sends SIGCONT, because a paused program would not handle s. That the program
// has ended already is no error.
func (p *Process) Stop(ctx context.Context, s syscall.Signal) (int, error) {
	for _, s := range []syscall.Signal{s, syscall.SIGCONT} {
		if err := p.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return -1, err
		}
	}
	return p.Wait(ctx)
}

// Log returns the contents of the log file, or the error text if it cannot be
// read.
func (p *Process) Log() string {
	data, err := p.on.ReadFile(p.file)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// PID returns the program's PID in the PID namespace of this process.
func (p *Process) PID() int { return p.cmd.Process.Pid }
