package main

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

// residentOfFiles is the resident memory of this process that belongs to files, in kB.
func residentOfFiles(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "RssFile:")
	kb, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return kb
}

func TestReleaseProgram(t *testing.T) {
	before := residentOfFiles(t)
	releaseProgram()
	if after := residentOfFiles(t); after >= before {
		t.Errorf("%d kB of files are resident, of %d before", after, before)
	}
}
