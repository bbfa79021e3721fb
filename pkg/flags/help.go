package flags

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// HelpWidth is the maximum length of a line of help, in characters.
const HelpWidth = 100

const helpColumn = 36 // the column of the explanations

// Help writes the help of all flags.
func Help[O any](b *strings.Builder, table []Group[O]) {
	for _, g := range table {
		fmt.Fprintf(b, "\n%s:\n", g.Title)
		for _, f := range g.Flags {
			f.print(b)
		}
	}
}

func (f Flag[O]) print(b *strings.Builder) {
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

// Row writes two columns, wrapping the second one.
func Row(b *strings.Builder, left, right string) {
	line := "  " + left
	if utf8.RuneCountInString(line) >= helpColumn {
		fmt.Fprintln(b, line)
		line = ""
	}
	pad := func() {
		line += strings.Repeat(" ", helpColumn-utf8.RuneCountInString(line)-1)
	}
	pad()
	for word := range strings.FieldsSeq(right) {
		if utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > HelpWidth {
			fmt.Fprintln(b, line)
			line = ""
			pad()
		}
		line += " " + word
	}
	fmt.Fprintln(b, line)
}
