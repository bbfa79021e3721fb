package main

import (
	"fmt"
	"os"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"
)

// releaseProgram makes the kernel forget which pages of the program this process has used.
// For each page that is used, the kernel maps the 15 beside it, too, so that most of the
// program is resident although a start uses a small part of it once. Pages that are used
// again are mapped from the page cache, without reading the file, in less than a
// microsecond each. It is only an optimization, so it ignores errors.
//
// No page is lost that differs from the file. The first write to a page of a private mapping
// makes it anonymous, also where the mapping is read-only by now, such as what the dynamic
// linker has relocated, or where a debugger wrote a breakpoint. Mappings with such pages are
// left alone. So are those that can be written, whose pages may become anonymous meanwhile.
func releaseProgram() {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	mappings, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return
	}
	for _, m := range releasable(string(mappings), program) {
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, m.from, m.to-m.from, unix.MADV_DONTNEED)
	}
}

// mapping is a range of addresses.
type mapping struct{ from, to uintptr }

// releasable returns the mappings of the program that cannot be written and have no
// anonymous page, in memory or swapped out. smaps is the content of /proc/self/smaps.
func releasable(smaps, program string) (all []mapping) {
	candidate := false // the mapping that is being read is the last one of all
	for line := range strings.Lines(smaps) {
		line = strings.TrimSpace(line)
		if line != "" && !unicode.IsUpper(rune(line[0])) { // not one of some 25 values of a mapping
			var m mapping
			var mode string
			_, err := fmt.Sscanf(line, "%x-%x %s", &m.from, &m.to, &mode)
			if candidate = err == nil && strings.HasSuffix(line, " "+program) && !strings.Contains(mode, "w"); candidate {
				all = append(all, m)
			}
			continue
		}
		name, size, _ := strings.Cut(line, ":")
		if candidate && (name == "Anonymous" || name == "Swap") && strings.TrimSpace(size) != "0 kB" {
			all, candidate = all[:len(all)-1], false
		}
	}
	return all
}
