package main

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// releaseProgram makes the kernel forget which pages of the program this process has used.
// For each page that is used, the kernel maps the 15 beside it, too, so that most of the
// program is resident although a start uses a small part of it once. Pages that are used
// again are mapped from the page cache, without reading the file, in less than a
// microsecond each. It is only an optimization, so it ignores errors.
func releaseProgram() {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return
	}
	for line := range strings.Lines(string(maps)) {
		var from, to uintptr
		var mode string
		if _, err := fmt.Sscanf(line, "%x-%x %s", &from, &to, &mode); err != nil {
			continue
		}
		if strings.HasSuffix(strings.TrimSpace(line), " "+program) && !strings.Contains(mode, "w") { // what was written has no other copy
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_DONTNEED)
		}
	}
}
