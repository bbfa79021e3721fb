package cniplugin

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/windows"
)

// EndTogether makes this process's end, by whatever hand, the end of the delegate and all that it has started: a runtime
// that kills the plugin calls it again with DEL, beside which no ADD may go on. (On Linux DEL waits for a lock instead.)
func EndTogether() error {
	job, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		return fmt.Errorf("create job object: %w", err)
	}
	limits := windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION{}
	limits.BasicLimitInformation.LimitFlags = windows.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE
	_, err = windows.SetInformationJobObject(job, windows.JobObjectExtendedLimitInformation, uintptr(unsafe.Pointer(&limits)), uint32(unsafe.Sizeof(limits)))
	if err != nil {
		return fmt.Errorf("set limits of the job object: %w", err)
	}
	// The handle stays open until the process ends, which closes it.
	if err := windows.AssignProcessToJobObject(job, windows.CurrentProcess()); err != nil {
		return fmt.Errorf("join the job object: %w", err)
	}
	return nil
}
