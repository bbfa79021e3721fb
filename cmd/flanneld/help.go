package main

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

const (
	helpColumn = 36  // where the explanations begin
	helpWidth  = 100 // characters of a line
)

// printHelp writes what --help shows.
func printHelp(w io.Writer) error {
	var b strings.Builder
	b.WriteString(`flanneld gives this node a subnet of the pod network and makes the other nodes' subnets reachable.

Usage:
`)
	row(&b, "flanneld [flags]", "run the daemon")
	for _, c := range commands() {
		row(&b, "flanneld [flags] "+c.name, c.help)
	}
	b.WriteString(`
One dash is as good as two. Every flag can also be given as an environment variable: FLANNELD_ and
its name in upper case, with _ for -; --iface-regex is FLANNELD_IFACE_REGEX. The command line wins.
Booleans take =true or =false; flags marked with * may be given more than once.
`)
	for _, g := range flagGroups() {
		fmt.Fprintf(&b, "\n%s:\n", g.title)
		for _, f := range g.flags {
			f.print(&b)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (f flagRow) print(b *strings.Builder) {
	left := "--" + f.name
	if f.arg != "" {
		left += "=" + f.arg
	}
	if f.repeat {
		left += " *"
	}
	right := f.help
	if f.def != "" && f.def != "false" {
		right += " (default " + f.def + ")"
	}
	row(b, left, right)
}

// row writes two columns, the second wrapped.
func row(b *strings.Builder, left, right string) {
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
		if utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > helpWidth {
			fmt.Fprintln(b, line)
			line = ""
			pad()
		}
		line += " " + word
	}
	fmt.Fprintln(b, line)
}
