package nettest

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
)

// Process is a server process of a test. It ends with the test, unless Start
// started it, and always if the test process is killed (on Linux; see attach).
type Process struct {
	t      testing.TB
	cmd    *exec.Cmd
	log    string        // path
	exited chan struct{} // closed when the process has ended
}

// Run starts a program and appends its output to the file log.
func Run(t testing.TB, log, program string, args ...string) *Process {
	t.Helper()
	p, err := Start(log, program, args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p.For(t)
}

// Start is like Run for a process that several tests use one after the other. It
// ends by Stop or Kill, or with the test process.
func Start(log, program string, args ...string) (*Process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p := &Process{cmd: exec.Command(program, args...), log: log, exited: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = out, out
	attach(p.cmd) // so that it ends with this process
	started := make(chan error, 1)
	go func() {
		// Linux sends the death signal when the thread that started the process
		// ends, so this thread must live until then.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.exited)
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	return p, nil
}

// For returns the same process for the use of a test, which fails if Pause or Resume
// does.
func (p *Process) For(t testing.TB) *Process {
	q := *p
	q.t = t
	return &q
}

// Exited returns a channel that is closed when the process has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Stop ends the process with SIGTERM and waits.
func (p *Process) Stop() { p.end(syscall.SIGTERM) }

// Kill ends the process with SIGKILL and waits.
func (p *Process) Kill() { p.end(syscall.SIGKILL) }

// end sends a signal and waits until the process has ended. It may be called again.
func (p *Process) end(sig os.Signal) {
	_ = p.cmd.Process.Signal(sig) // fails if it has ended
	_ = resume(p.cmd.Process)     // a paused process handles SIGTERM only after SIGCONT
	<-p.exited
}

// Pause stops the process with SIGSTOP. The kernel still accepts data on its
// connections, but nothing answers.
func (p *Process) Pause() {
	p.t.Helper()
	if err := pause(p.cmd.Process); err != nil {
		p.t.Fatalf("pause %s: %v", p.cmd.Path, err)
	}
}

// Resume continues the process after Pause.
func (p *Process) Resume() {
	p.t.Helper()
	if err := resume(p.cmd.Process); err != nil {
		p.t.Fatalf("resume %s: %v", p.cmd.Path, err)
	}
}

// Log returns the end of the output, up to 4000 bytes, for a message of the
// test.
func (p *Process) Log() string {
	text, _ := os.ReadFile(p.log) // no log is an empty log
	return fmt.Sprintf("end of its log:\n%s", text[max(0, len(text)-4000):])
}
