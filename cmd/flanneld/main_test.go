package main

import (
	"os"
	"testing"
)

// TestMain lets the test binary be flanneld itself, for tests that want a process of it: by a variable, or as a service
// of Windows.
func TestMain(m *testing.M) {
	if os.Getenv(beFlanneld) != "" || os.Args[len(os.Args)-1] == "run" {
		main()
	}
	os.Exit(m.Run())
}

const beFlanneld = "BE_FLANNELD"
