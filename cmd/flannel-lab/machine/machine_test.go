package machine

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// roleBroken is process 1 of a machine that cannot be set up.
const roleBroken = "broken"

func TestMain(m *testing.M) {
	Init(Roles{roleBroken: func() error { return Hold(func() error { return errors.New("no disk") }) }})
	os.Exit(m.Run())
}

// Process 1 of a machine that cannot be set up does not stay as a zombie.
func TestFailedBootLeavesNoProcess(t *testing.T) {
	cmd := InRole(roleBroken)
	m, err := Boot("a", cmd)
	if m != nil || err == nil || !strings.Contains(err.Error(), "no disk") {
		t.Errorf("Boot: %v, %v", m, err)
	}
	if _, err := unix.Wait4(cmd.Process.Pid, nil, 0, nil); !errors.Is(err, unix.ECHILD) {
		t.Errorf("process 1 was a child still: %v", err)
	}
}
