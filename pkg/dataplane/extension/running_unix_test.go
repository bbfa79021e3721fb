//go:build !windows

package extension

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// running reports whether a process with this PID runs, and is no zombie.
func running(t *testing.T, pid string) bool {
	t.Helper()
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

func kill(t *testing.T, pid string) {
	t.Helper()
	id, err := strconv.Atoi(pid)
	if err = errors.Join(err, syscall.Kill(id, syscall.SIGKILL)); err != nil {
		t.Error(err)
	}
}
