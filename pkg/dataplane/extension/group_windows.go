package extension

import (
	"errors"
	"fmt"
	"os/exec"

	"golang.org/x/sys/windows"
)

// runGroup runs a command. When its context ends, the command is killed together
// with the processes of its job object: those that it started, except in the
// moment before it was put into the job.
func runGroup(cmd *exec.Cmd) error {
	job, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		return fmt.Errorf("create job object: %w", err)
	}
	defer windows.CloseHandle(job) //nolint:errcheck // its processes go on
	cmd.Cancel = func() error {
		return errors.Join(windows.TerminateJobObject(job, 1), cmd.Process.Kill())
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	if err := assign(job, cmd.Process.Pid); err != nil {
		return errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	return cmd.Wait()
}

// assign puts a process into a job. That it has ended already is no error.
func assign(job windows.Handle, pid int) error {
	process, err := windows.OpenProcess(windows.PROCESS_SET_QUOTA|windows.PROCESS_TERMINATE, false, uint32(pid))
	if errors.Is(err, windows.ERROR_INVALID_PARAMETER) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", pid, err)
	}
	defer windows.CloseHandle(process) //nolint:errcheck // it was only used
	if err := windows.AssignProcessToJobObject(job, process); err != nil && !errors.Is(err, windows.ERROR_ACCESS_DENIED) {
		return fmt.Errorf("assign process to job object: %w", err)
	}
	return nil
}
