//go:build !windows

package extension

import (
	"os"
	"strings"
	"testing"
)

// running reports whether a process with this PID runs, and is no zombie.
func running(t *testing.T, pid string) bool {
	t.Helper()
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	return err == nil && !strings.Contains(string(stat), ") Z ")
}
