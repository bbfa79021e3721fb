package linux

import (
	"strings"
	"testing"
)

func TestLastLines(t *testing.T) {
	long := strings.Repeat("x", 199)
	for _, c := range []struct {
		output string
		number int
		want   string
	}{
		{"", 1, "it printed nothing: see the system's log"},
		{"one\ntwo\n", 3, "one; two"},
		{"one\ntwo\n\n three\nfour", 3, "two; three; four"},
		{"ERROR: (flannel-wg) 2026/01/02 03:04:05 Failed to create TUN device\n", 1, "Failed to create TUN device"},
		{"00[LIB] no-vici\n00[DMN] initialization failed - aborting charon\n", 3, "no-vici"},
		{long + "yz", 1, long + "y"},
		{long + "é", 1, long}, // the cut is within a character
		{"a\xffb", 1, "ab"},
		{"one\n\xff\n", 1, "one"},
	} {
		if got := lastLines(c.output, c.number); got != c.want {
			t.Errorf("%q, %d lines: %q, want %q", c.output, c.number, got, c.want)
		}
	}
}
