// This file has the part of Components that is about processes, and Start and Stop, which
// choose between a process and a service (component_service_windows.go). A Component is
// kubelet, kube-proxy or flanneld, with its program, arguments and environment (component.go).

package service

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"

	"flannel/pkg/file"
)

// RequireAdministrator returns an error if this process may not change services. The commands node start, node stop and
// node reset call it first.
func RequireAdministrator() error {
	if !windows.GetCurrentProcessToken().IsElevated() {
		return errors.New(`this needs an elevated shell: start it with "Run as administrator"`)
	}
	return nil
}

// Start runs a component as a process, or as a service. If it runs with the same
// command, it runs on; with another one, it is restarted. A service of that name that
// Components did not create is only started, and Stop leaves it running. A node changes from
// processes to services by stopping all of them first (node start), and never back: a service
// that Components created is used, whatever asService is.
func (c Components) Start(ctx context.Context, what Component, asService bool) error {
	registered, err := lookUpService(what.Name)
	switch {
	case err != nil:
		return err
	case registered.exists && !registered.own:
		if err := startNamed(ctx, what.Name, c.Out); err != nil {
			return err
		}
		c.say("the service %s runs; node start does not change its arguments", what.Name)
		return nil
	case asService || registered.own: // a process beside the service would run twice after the next boot
		if err := c.stopProcess(what.Name); err != nil { // one that a former version started although it had a service
			return err
		}
		return c.startOwnService(ctx, what, registered)
	}
	return c.startProcess(what, startsWithin)
}

// Stop stops the process of a component, or the service that Components created for it. What
// it runs as is found out: it may be either or neither. A service of others runs on. ctx
// only ends the wait for a service. The process that calls Stop runs on, and stays recorded:
// node start --retry stops what an earlier start left, and goes on.
func (c Components) Stop(ctx context.Context, name string) error {
	registered, err := lookUpService(name)
	if err != nil {
		return err
	}
	if registered.own {
		if err := stopNamed(ctx, name, c.Out); err != nil {
			return err
		}
	}
	return c.stopProcess(name)
}

// stopProcess stops the process of a component, and removes its record. It does nothing if there
// is none, or if it is this one.
func (c Components) stopProcess(name string) error {
	running, err := c.openOwn(name)
	if err != nil {
		return err
	}
	if running != nil {
		defer running.close()
		if running.ID == windows.GetCurrentProcessId() {
			return nil
		}
		if err := running.kill(); err != nil {
			return fmt.Errorf("stop %s, process %d: %w", name, running.ID, err)
		}
		c.say("stopped %s", name)
	}
	if err := os.Remove(c.recordFile(name)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Running reports whether a component runs, as a process of Components or as any
// service of that name.
func (c Components) Running(name string) (bool, error) {
	running, err := c.openOwn(name)
	if err != nil {
		return false, err
	}
	if running != nil {
		running.close()
		return true, nil
	}
	return serviceRuns(name)
}

// Record writes this process into the record of a component, so that Stop, called by another
// process, ends this one. node start --retry calls Record, and node stop calls Stop.
func (c Components) Record(name string) error {
	self, err := openProcess(windows.GetCurrentProcessId(), toLook)
	if err != nil {
		return err
	}
	defer self.close()
	return c.write(name, self.record)
}

// write writes the record of a component.
func (c Components) write(name string, r record) error {
	return file.PutJSON(c.recordFile(name), r)
}

// startProcess starts a component as a process, unless it runs with the same command. If
// it runs with another one, it is stopped first. The command is Env, Program and Args. within
// is how long a new process has to run (launch).
func (c Components) startProcess(what Component, within time.Duration) error {
	command := windows.ComposeCommandLine(slices.Concat(what.Env, []string{what.Program}, what.Args))
	running, err := c.openOwn(what.Name)
	if err != nil {
		return err
	}
	if running != nil {
		same := running.Command == command
		running.close()
		if same {
			c.say("%s runs already", what.Name)
			return nil
		}
		if err := c.stopProcess(what.Name); err != nil {
			return err
		}
	}
	runsElsewhere := what.Other // an error if somebody else has started the component; only flanneld has such a function
	if runsElsewhere == nil {
		runsElsewhere = func() error { return noneNamed(what.Name) }
	}
	if err := runsElsewhere(); err != nil {
		return err
	}
	return c.launch(what, command, within)
}

// startsWithin is how long a process has to run until it counts as started: one with a
// wrong flag ends earlier.
const startsWithin = 2 * time.Second

// launch starts a process, which outlives this one, and records it: with command, its
// variables and command line as one text, by which a later startProcess recognizes others.
// A process that ends before within is over is an error.
func (c Components) launch(what Component, command string, within time.Duration) error {
	if err := what.needProgram(); err != nil {
		return err
	}
	cmd := exec.Command(what.Program, what.Args...)
	cmd.Env = append(os.Environ(), what.Env...)
	// Without a window, it has a console of its own: Ctrl-C in this one does not reach it.
	cmd.SysProcAttr = &syscall.SysProcAttr{HideWindow: true, CreationFlags: windows.CREATE_NEW_PROCESS_GROUP | windows.CREATE_NO_WINDOW}
	log := filepath.Join(c.LogDir, what.Name+".log")
	stderr, err := newLog(log)
	if err != nil {
		return err
	}
	defer stderr.Close() //nolint:errcheck // the process has a handle of its own
	stdout, err := newLog(filepath.Join(c.LogDir, what.Name+".out.log"))
	if err != nil {
		return err
	}
	defer stdout.Close() //nolint:errcheck // likewise
	cmd.Stderr, cmd.Stdout = stderr, stdout
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", what.Name, err)
	}
	// This process keeps its own handle until here, so that the ID is still that of the
	// new one.
	defer cmd.Process.Release() //nolint:errcheck // only releases a handle
	started, err := openProcess(uint32(cmd.Process.Pid), toStop)
	if err == nil {
		defer started.close()
		started.Command = command
		err = c.write(what.Name, started.record)
	}
	if err != nil { // without a record, nobody could stop it: Stop and the next Start would take it for another program's
		return fmt.Errorf("start %s: %w", what.Name, errors.Join(err, cmd.Process.Kill()))
	}
	if status, ended := started.wait(within); ended {
		return fmt.Errorf("%s ended at once, with status %d: %s says why", what.Name, status, log)
	}
	c.say("started %s; it writes to %s", what.Name, log)
	return nil
}

// newLog creates a log. The former one, which may say why its process ended, is kept
// as .1: a copy, because a file that a program has open still cannot be renamed.
func newLog(path string) (*os.File, error) {
	if err := file.Copy(path, path+".1", 0o644); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("keep the former log: %w", err)
	}
	return os.Create(path)
}

// process is one that runs, or ran when it was opened. While its handle is open, no other
// process gets its ID.
type process struct {
	record
	handle windows.Handle // the caller closes it
}

// Rights to a process. Windows gives an administrator toLook, and not toStop, for many of its
// own processes.
const (
	toLook = windows.PROCESS_QUERY_LIMITED_INFORMATION
	toStop = toLook | windows.PROCESS_TERMINATE | windows.SYNCHRONIZE
)

// openProcess opens the process that has this ID now, and reads when it was started.
func openProcess(id, rights uint32) (*process, error) {
	h, err := windows.OpenProcess(rights, false, id)
	if err != nil {
		return nil, os.NewSyscallError("OpenProcess", err)
	}
	p := &process{record{ID: id}, h}
	var created, exited, kernel, user windows.Filetime
	if err := windows.GetProcessTimes(h, &created, &exited, &kernel, &user); err != nil {
		p.close()
		return nil, os.NewSyscallError("GetProcessTimes", err)
	}
	p.Started = int64(created.HighDateTime)<<32 | int64(created.LowDateTime)
	return p, nil
}

// openOwn returns the process that is recorded under a name, nil if it has ended. Another
// process may have its ID by now, as after a boot, but was started at another time. It may be
// one of Windows that nobody may stop, or even look at; an administrator may look at each
// process that Components has started.
func (c Components) openOwn(name string) (*process, error) {
	r, err := c.readRecord(name)
	if err != nil || r.ID == 0 {
		return nil, err
	}
	found, err := openProcess(r.ID, toLook)
	if errors.Is(err, windows.ERROR_INVALID_PARAMETER) || errors.Is(err, windows.ERROR_ACCESS_DENIED) { // no process has the ID, or another one
		return nil, nil
	}
	var p *process
	if err == nil {
		defer found.close() // until then, no other process gets the ID
		if found.Started != r.Started {
			return nil, nil
		}
		p, err = openProcess(r.ID, toStop)
	}
	if err != nil {
		return nil, fmt.Errorf("look at %s, process %d: %w", name, r.ID, err)
	}
	if _, ended := p.wait(0); ended {
		p.close()
		return nil, nil
	}
	p.Command = r.Command
	return p, nil
}

// close gives up the handle; the process runs on.
func (p *process) close() { _ = windows.CloseHandle(p.handle) }

// wait waits until the process has ended, for a limited time; with 0, it only looks.
func (p *process) wait(limit time.Duration) (status uint32, ended bool) {
	if event, err := windows.WaitForSingleObject(p.handle, uint32(limit/time.Millisecond)); err != nil || event != windows.WAIT_OBJECT_0 {
		return 0, false
	}
	_ = windows.GetExitCodeProcess(p.handle, &status) // only for a message
	return status, true
}

// kill ends the process, and waits until it has ended.
func (p *process) kill() error {
	if err := windows.TerminateProcess(p.handle, 1); err != nil { // 1: its exit status
		if _, ended := p.wait(0); ended { // by itself, before the call
			return nil
		}
		return os.NewSyscallError("TerminateProcess", err)
	}
	if _, ended := p.wait(stateWithin); !ended {
		return fmt.Errorf("it still runs after %v", stateWithin)
	}
	return nil
}

// noneNamed returns an error if a process runs a program of this name.
func noneNamed(name string) error {
	ids, err := processesNamed(name)
	if err != nil || len(ids) == 0 {
		return err
	}
	return fmt.Errorf("%s runs already, as process %d, and flanneld did not start it: stop it first", name, ids[0])
}

// processesNamed returns the IDs of the processes that run a program of this name.
func processesNamed(name string) (ids []uint32, err error) {
	all, err := windows.CreateToolhelp32Snapshot(windows.TH32CS_SNAPPROCESS, 0)
	if err != nil {
		return nil, os.NewSyscallError("CreateToolhelp32Snapshot", err)
	}
	defer windows.CloseHandle(all) //nolint:errcheck // only releases a handle
	entry := windows.ProcessEntry32{Size: uint32(unsafe.Sizeof(windows.ProcessEntry32{}))}
	for err = windows.Process32First(all, &entry); err == nil; err = windows.Process32Next(all, &entry) {
		if strings.EqualFold(windows.UTF16ToString(entry.ExeFile[:]), name+".exe") {
			ids = append(ids, entry.ProcessID)
		}
	}
	if !errors.Is(err, windows.ERROR_NO_MORE_FILES) {
		return nil, os.NewSyscallError("Process32Next", err)
	}
	return ids, nil
}
