package extension

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"unsafe"

	"golang.org/x/sys/windows"
)

// marks are not needed: Windows ends the commands of a process that was killed.
type marks struct {
	path string
	log  *slog.Logger
}

// runGroup runs a command. When its context ends, the command is killed together
// with the processes of its job object: those that it started, except in the
// moment before it was put into the job. Windows kills them as well when this process
// ends, since that closes the job. Other systems need marks for that.
func runGroup(cmd *exec.Cmd, _ *marks) error {
	job, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		return fmt.Errorf("create job object: %w", err)
	}
	defer windows.CloseHandle(job) //nolint:errcheck // its processes go on, unless killOnClose holds
	if err := killOnClose(job, true); err != nil {
		return err
	}
	cmd.Cancel = func() error {
		return errors.Join(windows.TerminateJobObject(job, 1), cmd.Process.Kill())
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	if err := assign(job, cmd.Process); err != nil {
		return errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	err = cmd.Wait()
	return errors.Join(err, killOnClose(job, false))
}

// killOnClose sets whether the processes of a job are killed when it is closed.
func killOnClose(job windows.Handle, on bool) error {
	var info windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION
	if on {
		info.BasicLimitInformation.LimitFlags = windows.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE
	}
	_, err := windows.SetInformationJobObject(job, windows.JobObjectExtendedLimitInformation, uintptr(unsafe.Pointer(&info)), uint32(unsafe.Sizeof(info)))
	if err != nil {
		return fmt.Errorf("set limits of job object: %w", err)
	}
	return nil
}

// endFormer has nothing to do: no command outlives the process that runs it.
func (d *Dataplane) endFormer(context.Context) bool { return true }

// assign puts a process into a job. That it has ended already is no error.
func assign(job windows.Handle, process *os.Process) error {
	var assigned error
	err := process.WithHandle(func(h uintptr) { assigned = windows.AssignProcessToJobObject(job, windows.Handle(h)) })
	if errors.Is(assigned, windows.ERROR_ACCESS_DENIED) { // it has ended
		assigned = nil
	}
	if err := errors.Join(err, assigned); err != nil {
		return fmt.Errorf("assign process to job object: %w", err) // without the PID, which differs each time
	}
	return nil
}
