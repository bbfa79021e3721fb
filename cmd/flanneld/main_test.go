package main

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

// TestMain lets the test binary be flanneld itself, for tests that want a process of it: by a variable, or as a service
// of Windows. It does not ask who the parent is, for Wine's answer is laid out in a way that the race detector ends.
func TestMain(m *testing.M) {
	cobra.MousetrapHelpText = "" // as in main
	p := process{args: os.Args[1:], environ: os.Environ(), stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, confine: confine}
	p.screen = screenOf(os.Stdout)
	switch {
	case slices.Equal(os.Args[max(0, len(os.Args)-2):], []string{"service", "run"}):
		os.Exit(runService(p))
	case os.Getenv(beWaiting) != "":
		time.Sleep(time.Hour) // until the test kills it
	case os.Getenv(beFlanneld) != "":
		os.Exit(runForeground(p))
	}
	os.Exit(m.Run())
}

// Environment variables with which the test's program is flanneld, or only waits.
const beFlanneld, beWaiting = "BE_FLANNELD", "BE_WAITING"
