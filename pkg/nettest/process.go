package nettest

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
)

// Process is a server that a test runs. It ends with the test, however that ends.
type Process struct {
	t      testing.TB
	cmd    *exec.Cmd
	log    string
	exited chan struct{}
}

// Run starts a program; what it writes is added to the file log.
func Run(t testing.TB, log, program string, args ...string) *Process {
	t.Helper()
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	p := &Process{t: t, cmd: exec.Command(program, args...), log: log, exited: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = out, out
	attach(p.cmd)
	started := make(chan error, 1)
	go func() {
		// The death signal is bound to the thread that starts the process: it must live as long.
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
		t.Fatalf("start %s: %v", program, err)
	}
	t.Cleanup(p.Kill)
	return p
}

// Exited is closed when the process has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// PID is its process ID, for /proc.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Stop ends it in an orderly way.
func (p *Process) Stop() { p.end(syscall.SIGTERM) }

// Kill ends it at once.
func (p *Process) Kill() { p.end(syscall.SIGKILL) }

func (p *Process) end(sig os.Signal) {
	_ = p.cmd.Process.Signal(sig)
	_ = resume(p.cmd.Process) // a paused one takes no other signal than the last
	<-p.exited
}

// Pause stops it as it stands: its kernel still takes packets, it answers none.
func (p *Process) Pause() {
	p.t.Helper()
	if err := pause(p.cmd.Process); err != nil {
		p.t.Fatalf("pause %s: %v", p.cmd.Path, err)
	}
}

// Resume ends a pause.
func (p *Process) Resume() {
	p.t.Helper()
	if err := resume(p.cmd.Process); err != nil {
		p.t.Fatalf("resume %s: %v", p.cmd.Path, err)
	}
}

// Log is the end of what it wrote.
func (p *Process) Log() string {
	text, _ := os.ReadFile(p.log) // no log is an empty log
	return fmt.Sprintf("its log ends:\n%s", text[max(0, len(text)-4000):])
}
