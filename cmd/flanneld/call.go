// This file has what all commands share: the process, the flags, and how an answer or
// an error is printed.

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"flannel/pkg/cni/install"
	"flannel/pkg/conf"
)

// process holds what the program takes from its process, so that tests can
// replace it.
type process struct {
	args, environ  []string // args without the program's name, environ as from os.Environ
	stdin          io.Reader
	stdout, stderr io.Writer
	screen         func() (columns, lines int) // size of the terminal that shows stdout, 0: unknown; nil: it is none
	terminal       bool                        // stderr is a terminal
	events         slog.Handler                // event log of a Windows service, which has no stderr; nil in the foreground
	confine        func() error                // forbids the process to use the network as long as it runs; nil in tests, and on Windows, which cannot
	// containerd returns where containerd looks for CNI; nil: install.FindContainerd.
	containerd func() (install.ContainerdCNI, error)
}

// call is one invocation of a command, on the goroutine of main. Each command gets a copy of
// the call when cobra's tree is made (command.cobra), and only one of them runs. A command
// line has two sets of flags, those of the daemon before the command's name and the command's
// own after it:
//
//	flanneld --kube-subnet-mgr doctor --json
//	         └ options         └ name └ call.flags
//
// The daemon's flags apply to commands, too, so that a command finds the store and
// the files that the daemon uses.
type call struct {
	options // Args are the command's own arguments
	process
	log   *slog.Logger
	flags *pflag.FlagSet // the command's own flags, as opposed to those of the daemon; set when the command is made
	json  bool           // the value of --json, if the command has that flag

	operand string   // what follows the flags, if the command has an operand
	passed  []string // what follows "--", if the command passes it on
}

// columns returns the width of the terminal that shows stdout; 0: it is none.
func (p process) columns() int {
	if p.screen == nil {
		return 0
	}
	columns, _ := p.screen()
	return columns
}

// jsonFlag declares --json.
func (c *call) jsonFlag(help string) { c.flags.BoolVar(&c.json, "json", false, help) }

// limitFlag declares a flag for a positive duration; value is the default, 0 for no limit. The
// result has the flag's value after the flags are parsed.
func (c *call) limitFlag(name string, value time.Duration, help string) *time.Duration {
	c.flags.Var((*conf.DurationLimit)(&value), name, help)
	return &value
}

// answer prints the result of the command: with --json the document, else the
// text unless it is empty. It prints err, if any, to stderr, and returns exitOK
// or, also if the result could not be printed, exitError.
func (c *call) answer(document any, text string, err error) int {
	var printed error
	if c.json {
		printed = c.printJSON(document)
	} else if text != "" {
		_, printed = fmt.Fprintln(c.stdout, text)
	}
	return c.reportError(errors.Join(err, printed))
}

// failure is the JSON document, with --json, of a command that has no result but an
// error.
type failure struct {
	Problem string `json:"problem"`
}

// fail is answer for a command that has no result but an error.
func (c *call) fail(err error) int { return c.answer(failure{err.Error()}, "", err) }

// problem returns the text of an error for a JSON document, "" for nil.
func problem(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// reportUsage reports all problems of the command's arguments, as
// process.reportUsage does.
func (c *call) reportUsage(err error) int { return c.process.reportUsage(c.Args, err) }

// reportUsage reports all problems of a command line. It returns exitUsage.
func (p process) reportUsage(args []string, err error) int {
	p.reportProblems(args, err)
	return exitUsage
}

// reportProblems prints all problems of a start to stderr, one per line, and with
// --json also a document to stdout.
func (p process) reportProblems(args []string, err error) {
	// The flags may not have been parsed yet, or not all of them, so --json is looked
	// for in the arguments: a script gets a document even then.
	if asksForJSON(args) {
		_ = p.printJSON(failure{err.Error()}) // stderr has the same
	}
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintln(p.stderr, "flanneld: "+strings.TrimSpace(line)) //nolint:errcheck // stderr is the last resort
	}
}

// printJSON prints one JSON document to stdout.
func (p process) printJSON(document any) error {
	enc := json.NewEncoder(p.stdout)
	enc.SetIndent("", "  ")
	return enc.Encode(document)
}

// reportError prints an error to stderr and returns exitError; for nil it
// returns exitOK.
func (p process) reportError(err error) int {
	if err == nil {
		return exitOK
	}
	fmt.Fprintln(p.stderr, "flanneld:", err) //nolint:errcheck // stderr is the last resort
	return exitError
}

// asksForJSON reports whether --json is among arguments that may be invalid otherwise.
// Arguments after "--" are not the command's.
func asksForJSON(args []string) bool {
	if end := slices.Index(args, "--"); end >= 0 {
		args = args[:end]
	}
	return slices.ContainsFunc(args, func(arg string) bool {
		return slices.Contains([]string{"--json", "-json", "--json=true", "-json=true"}, arg)
	})
}
