package flags

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// HelpWidth is the maximum length of a line of help, in characters.
const HelpWidth = 100

const leftWidth = 35 // of the column with the flags

// Help writes the help of all flags.
func Help[O any](b *strings.Builder, table []Group[O]) {
	for _, g := range table {
		fmt.Fprintf(b, "\n%s:\n", g.Title)
		for _, f := range g.Flags {
			f.printHelp(b)
		}
	}
}

// printHelp writes one flag. The defaults "" and false are omitted, since they mean
// that the flag is not set:
//
//	--iface=NAME|IP *                interface to use, by name or address; tried in order
//	--retain-peers=SECONDS           how long to … (default 300)
func (f Flag[O]) printHelp(b *strings.Builder) {
	left := "--" + f.Name
	if f.Arg != "" {
		left += "=" + f.Arg
	}
	if f.Repeat {
		left += " *"
	}
	right := f.Help
	if f.Def != "" && f.Def != "false" {
		right += " (default " + f.Def + ")"
	}
	Row(b, left, right)
}

// Row writes two columns, wrapping the second one. If the first one is too long, the
// second one begins on a line of its own.
func Row(b *strings.Builder, left, right string) {
	emptyLeft := strings.Repeat(" ", leftWidth)
	line := fmt.Sprintf("%-*s", leftWidth, "  "+left)
	if utf8.RuneCountInString(line) > leftWidth {
		fmt.Fprintln(b, line)
		line = emptyLeft
	}
	for word := range strings.FieldsSeq(right) {
		if utf8.RuneCountInString(line+" "+word) > HelpWidth {
			fmt.Fprintln(b, line)
			line = emptyLeft
		}
		line += " " + word
	}
	fmt.Fprintln(b, line)
}
