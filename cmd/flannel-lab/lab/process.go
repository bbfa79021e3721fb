package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// process is a long-running program in a machine, with a log file there.
type process struct {
	on   *Machine
	cmd  *exec.Cmd
	file string // the log, in the machine
	done chan struct{}
}

func startProcess(on *Machine, cmd *exec.Cmd, logName string) (*process, error) {
	p := &process{on: on, cmd: cmd, file: "/run/" + logName, done: make(chan struct{})}
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

func (p *process) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// signal returns after SIGSTOP when the process stands still.
func (p *process) signal(s syscall.Signal) error {
	err := p.cmd.Process.Signal(s)
	if err == nil && s == syscall.SIGSTOP {
		_, err = Until(context.Background(), longest, func(context.Context) error { return p.still() })
	}
	return err
}

// still is an error while a thread of a process that was stopped goes on, which on a busy machine it does for a while.
func (p *process) still() error {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.cmd.Process.Pid))
	for _, task := range tasks {
		if stat, err := os.ReadFile(task); err == nil && !strings.Contains(string(stat), ") T ") && p.running() {
			return fmt.Errorf("it runs: %s", stat)
		}
	}
	return err
}

// wait returns the exit status as a shell would tell it (128 + signal).
func (p *process) wait(ctx context.Context) (int, error) {
	select {
	case <-p.done:
		return status(p.cmd.ProcessState.Sys().(syscall.WaitStatus)), nil
	case <-ctx.Done():
		return -1, fmt.Errorf("wait for %s to end: %w", filepath.Base(p.cmd.Path), ctx.Err())
	}
}

// stop sends s and waits; SIGCONT wakes one that was paused.
func (p *process) stop(ctx context.Context, s syscall.Signal) (int, error) {
	for _, s := range []syscall.Signal{s, syscall.SIGCONT} {
		if err := p.signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return -1, err
		}
	}
	return p.wait(ctx)
}

func (p *process) log() string {
	data, err := p.on.ReadFile(p.file)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// longest is how long the lab waits for one thing, such as a server that starts. It takes seconds where the machine does
// nothing else, and minutes where it does ten times what it can.
const longest = 10 * time.Minute

// Until calls f every few milliseconds until it succeeds, and returns how long that took. It gives up with f's last
// error after timeout, when ctx ends, or at an error made by Fatal.
func Until(ctx context.Context, timeout time.Duration, f func(context.Context) error) (time.Duration, error) {
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var last error
	for {
		err := f(ctx)
		if err == nil {
			return time.Since(start), nil
		}
		if last != nil && ctx.Err() != nil {
			err = last // what f says once its time is up is not the reason
		}
		last = err
		if fatal := new(fatalError); errors.As(err, &fatal) {
			return time.Since(start), fatal.error
		}
		select {
		case <-ctx.Done():
			return time.Since(start), fmt.Errorf("not within %v: %w", time.Since(start).Round(time.Millisecond), err)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

type fatalError struct{ error }

// Fatal marks an error at which Until need not go on.
func Fatal(err error) error { return &fatalError{err} }
