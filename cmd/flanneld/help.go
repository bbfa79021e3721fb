// This file prints the help. cobra and pflag know the commands and flags; the layout
// is ours, so that the daemon's flags have groups, and lines fit the terminal.

package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const aboutDaemon = `flanneld assigns this node a subnet of the pod network and makes the other nodes' subnets reachable.`

const aboutFlags = `Flags may start with one or two dashes. Each flag of the daemon can also be set by an environment variable,
which is FLANNELD_ and the name in upper case with _ for -: FLANNELD_IFACE_REGEX is --iface-regex. The
command line takes precedence. Boolean flags take =true or =false.`

// daemonExits are the exit codes of the daemon.
var daemonExits = map[int]string{
	exitOK: "stopped by a signal", exitError: "the lease was lost, or an error that flanneld does not retry", exitHeld: held,
}

// defaultWidth is that of the help if it is not printed to a terminal.
const defaultWidth = 100

// helpWidth returns the maximum length of a line of help, in characters, for a
// terminal with so many columns; 0: no terminal. Very long lines are hard to read.
func helpWidth(columns int) int {
	if columns == 0 {
		return defaultWidth
	}
	return min(max(columns, 60), 120)
}

// printHelp writes the help of a command. That of the root is the daemon's, with the
// list of commands.
func printHelp(w io.Writer, cmd *cobra.Command, rows []command, columns int) error {
	width := helpWidth(columns)
	var b strings.Builder
	wrap(&b, "", cmp.Or(cmd.Long, cmd.Short), width)
	exits := daemonExits
	if cmd.HasParent() {
		exits = rowOf(rows, cmd).exits
		line := cmd.UseLine()
		if cmd.Parent() == cmd.Root() && !cmd.HasSubCommands() { // others make no use of them
			line = strings.Replace(line, cmd.Root().Name(), cmd.Root().Name()+" [flags of the daemon]", 1)
		}
		fmt.Fprintf(&b, "\nUsage:\n  %s\n", line)
		if cmd.HasAvailableSubCommands() {
			printCommands(&b, cmd, width)
		}
		if cmd.HasExample() {
			fmt.Fprintf(&b, "\nExample:\n%s\n", cmd.Example)
		}
		printFlags(&b, "Flags", cmd.Flags(), width)
	} else {
		b.WriteString("\nUsage:\n")
		wrap(&b, "  flanneld [flags]                     ", "run the daemon", width)
		wrap(&b, "  flanneld [flags] <command> [flags]   ", "run a command, with the daemon's flags", width)
		printCommands(&b, cmd, width)
		b.WriteString("\n")
		wrap(&b, "", aboutFlags, width)
		for _, group := range flagTable() {
			set := pflag.NewFlagSet("", pflag.ContinueOnError)
			group.AddTo(set)
			printFlags(&b, group.Title, set, width)
		}
	}
	b.WriteString("\nExit status:\n")
	for _, e := range exitTexts(exits) {
		wrap(&b, fmt.Sprintf("  %d  ", e.code), e.text, width)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// rowOf returns the row of a command in the table, and an empty row for cobra's own. It looks
// for the parent's row first, if the command is below another one; the root has none.
func rowOf(rows []command, cmd *cobra.Command) command {
	if parent := cmd.Parent(); parent.HasParent() {
		rows = rowOf(rows, parent).below
	}
	if i := slices.IndexFunc(rows, func(r command) bool { return r.name == cmd.Name() }); i >= 0 {
		return rows[i]
	}
	return command{}
}

// exitText is an exit code and its meaning.
type exitText struct {
	code int
	text string
}

// exitTexts returns commonExits with the changes and additions of a command, in order.
func exitTexts(own map[int]string) (all []exitText) {
	texts := maps.Clone(commonExits)
	maps.Copy(texts, own)
	for _, code := range slices.Sorted(maps.Keys(texts)) {
		all = append(all, exitText{code, texts[code]})
	}
	return all
}

// printCommands lists the commands below cmd that are meant for this system.
func printCommands(b *strings.Builder, cmd *cobra.Command, width int) {
	b.WriteString("\nCommands:\n")
	for _, c := range cmd.Commands() {
		if listed(c) {
			wrap(b, fmt.Sprintf("  %-18s ", c.Name()), c.Short, width)
		}
	}
}

// printFlags lists flags in the order in which they were declared. pflag wraps them.
func printFlags(b *strings.Builder, title string, set *pflag.FlagSet, width int) {
	set.SortFlags = false
	if usages := set.FlagUsagesWrapped(width); usages != "" {
		b.WriteString("\n")
		wrap(b, "", title+":", width)
		b.WriteString(usages)
	}
}

// wrap writes text in lines of at most width characters, the first of which begins
// with prefix and the others with spaces instead. Paragraphs are divided by empty
// lines; indented lines stay as they are.
func wrap(b *strings.Builder, prefix, text string, width int) {
	indent := strings.Repeat(" ", utf8.RuneCountInString(prefix))
	line := prefix
	flush := func() {
		if strings.TrimSpace(line) != "" {
			b.WriteString(strings.TrimRight(line, " ") + "\n")
		}
		line = indent
	}
	for source := range strings.Lines(strings.TrimSpace(text)) {
		source = strings.TrimRight(source, "\n")
		if source == "" || strings.HasPrefix(source, " ") {
			flush()
			b.WriteString(source + "\n")
			continue
		}
		for word := range strings.FieldsSeq(source) {
			if strings.TrimSpace(line) != "" && utf8.RuneCountInString(line)+utf8.RuneCountInString(word) > width {
				flush()
			}
			line += word + " "
		}
	}
	flush()
}
