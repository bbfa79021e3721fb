package plugin

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/windows"
)

// KillDelegateOnExit puts this process into a job object, so that the delegate
// and its child processes are killed when this process exits for any reason. A
// runtime that kills the plugin during ADD calls DEL next, and the delegate of
// that ADD must not run concurrently. On Linux, DEL waits for a file lock instead.
func KillDelegateOnExit() error {
	job, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		return fmt.Errorf("create job object: %w", err)
	}
	limits := windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION{}
	limits.BasicLimitInformation.LimitFlags = windows.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE
	_, err = windows.SetInformationJobObject(job, windows.JobObjectExtendedLimitInformation,
		uintptr(unsafe.Pointer(&limits)), uint32(unsafe.Sizeof(limits)))
	if err != nil {
		return fmt.Errorf("set job object limits: %w", err)
	}
	// The handle is never closed: Windows closes it, and so ends the job, when
	// this process exits.
	if err := windows.AssignProcessToJobObject(job, windows.CurrentProcess()); err != nil {
		return fmt.Errorf("assign process to job object: %w", err)
	}
	return nil
}
