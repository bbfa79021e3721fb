package extension

import (
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/windows"
)

// running reports whether a process with this PID runs.
func running(t *testing.T, pid string) bool {
	t.Helper()
	id, err := strconv.ParseUint(pid, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	h, err := windows.OpenProcess(windows.SYNCHRONIZE, false, uint32(id))
	if err != nil {
		return false
	}
	defer windows.CloseHandle(h) //nolint:errcheck // it was only used
	state, err := windows.WaitForSingleObject(h, 0)
	return err == nil && state == uint32(windows.WAIT_TIMEOUT)
}

func kill(t *testing.T, pid string) {
	t.Helper()
	id, err := strconv.Atoi(pid)
	if err != nil {
		t.Fatal(err)
	}
	process, err := os.FindProcess(id)
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Kill(); err != nil {
		t.Error(err)
	}
}
