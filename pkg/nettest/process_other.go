//go:build !linux

package nettest

import (
	"errors"
	"os"
	"os/exec"
)

// Elsewhere the tests that use this package compile, but only Linux runs them all.

func attach(*exec.Cmd) {}

func pause(*os.Process) error { return errors.New("only Linux can do this") }

func resume(*os.Process) error { return nil }
