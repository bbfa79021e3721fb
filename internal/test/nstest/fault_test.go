//go:build linux

package nstest

import (
	"errors"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

func TestFaults(t *testing.T) {
	Run(t, func(t *testing.T) {
		f := NewFaults(t)
		read := func() error {
			_, err := os.ReadFile("/proc/self/stat")
			return err
		}
		f.Fail(1000, unix.EMFILE)
		if err := read(); err != nil {
			t.Fatal(err)
		}
		if f.Fail(0, 0); !f.unmet() {
			t.Error("a fault that no call has met is not reported")
		}
		for i, want := range []error{nil, unix.EMFILE, nil} {
			if i == 1 {
				f.Fail(1, unix.EMFILE)
			}
			if err := read(); !errors.Is(err, want) {
				t.Errorf("read %d returned %v, want %v", i, err, want)
			}
		}
		if n := f.Fail(0, 0); n != 2 {
			t.Errorf("counted %d calls, want 2", n)
		}
		if f.unmet() {
			t.Error("a fault that a call has met is reported")
		}
		start := func() error { return exec.Command("/bin/true").Run() }
		if err := start(); err != nil {
			t.Fatal(err)
		}
		for n := f.Fail(0, 0); n > 0; n-- {
			f.Fail(n, unix.ENOMEM)
			t.Logf("with a fault in call %d a program returns: %v", n, start())
		}
	})
}
