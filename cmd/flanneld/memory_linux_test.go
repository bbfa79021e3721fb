package main

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// residentOfFiles is the resident memory of this process that belongs to files, in bytes.
func residentOfFiles(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "RssFile:")
	var kb int
	if _, err := fmt.Sscan(rest, &kb); err != nil {
		t.Fatalf("RssFile in %q: %v", status, err)
	}
	return kb << 10
}

// mapProgram maps the whole program once more, as the dynamic linker does.
func mapProgram(t *testing.T, protection int) []byte {
	t.Helper()
	f, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // it is only read
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	all, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), protection, unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(all); err != nil {
			t.Error(err)
		}
	})
	return all
}

func TestReleaseProgram(t *testing.T) {
	program := mapProgram(t, unix.PROT_READ)
	bytes.Count(program, []byte{1}) // use all pages
	before := residentOfFiles(t)
	if before < len(program) {
		t.Fatalf("only %d bytes of files are resident, of %d that were read", before, len(program))
	}
	releaseProgram()
	if after := residentOfFiles(t); before-after < len(program)/2 {
		t.Errorf("%d bytes of files are resident, of %d before", after, before)
	}
}

// In a position-independent executable, the dynamic linker writes addresses into pages that
// are read-only afterwards.
func TestReleaseProgramKeepsWhatWasWritten(t *testing.T) {
	program := mapProgram(t, unix.PROT_READ|unix.PROT_WRITE)
	program[0]++
	written := program[0]
	if err := unix.Mprotect(program, unix.PROT_READ); err != nil {
		t.Fatal(err)
	}
	releaseProgram()
	if program[0] != written {
		t.Errorf("a byte is %d, which was written as %d", program[0], written)
	}
}

func TestReleasable(t *testing.T) {
	smaps := func(mode, file string, anonymous, swap int) string {
		return fmt.Sprintf("1000-3000 %s 00000000 fe:00 247278       %s\nSize: 8 kB\nRss: 8 kB\nAnonymous:  %d kB\nSwap:  %d kB\nVmFlags: rd mr mw me\n",
			mode, file, anonymous, swap)
	}
	for i, test := range []struct {
		smaps string
		want  []mapping
	}{
		{smaps("r-xp", "/bin/flanneld", 0, 0), []mapping{{0x1000, 0x3000}}},
		{smaps("r--p", "/bin/flanneld", 0, 0), []mapping{{0x1000, 0x3000}}},
		{smaps("rw-p", "/bin/flanneld", 0, 0), nil},
		{smaps("r--p", "/bin/flanneld", 4, 0), nil},
		{smaps("r--p", "/bin/flanneld", 0, 4), nil},
		{smaps("r--p", "/bin/flanneld", 4, 4), nil},
		{smaps("r--p", "/lib/libc.so.6", 0, 0), nil},
		{smaps("r--p", "", 4, 0), nil},
	} {
		next := strings.ReplaceAll(smaps("r--p", "/bin/flanneld", 0, 0), "1000-3000", "5000-6000") // is not affected by the first
		want := append(slices.Clone(test.want), mapping{0x5000, 0x6000})
		if have := releasable(test.smaps+next, "/bin/flanneld"); !slices.Equal(have, want) {
			t.Errorf("%d: releasable are %x, want %x", i, have, want)
		}
	}
}
