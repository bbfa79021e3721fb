package main

import (
	"context"
	"encoding/json"
	"errors"
	goflag "flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// parseCommand reads a subcommand's own arguments; about stands before its flags in its help. done: there is nothing left to
// do but to end with code.
func parseCommand(flags *goflag.FlagSet, about string, o options, stdout, stderr io.Writer) (done bool, code int) {
	var help strings.Builder // of a mistake too, who would look for the reason above a page of help
	flags.Init("flanneld "+o.Command, goflag.ContinueOnError)
	flags.SetOutput(&help)
	if about != "" { // else Go's own, which begins with the command's name
		flags.Usage = func() {
			help.WriteString(about)
			flags.PrintDefaults()
		}
	}
	err := flags.Parse(o.Args)
	switch {
	case errors.Is(err, goflag.ErrHelp):
		_, err := io.WriteString(stdout, help.String())
		return true, codeOf(err, stderr)
	case err != nil:
		err = fmt.Errorf("%s: %w", o.Command, err)
	case flags.NArg() > 0:
		err = fmt.Errorf("%s takes no argument %.40q", o.Command, flags.Arg(0))
	default:
		return false, exitOK
	}
	return true, refuse(o.Args, fmt.Errorf("%w; see flanneld %s --help", err, o.Command), stdout, stderr)
}

// failure is what a command that could do nothing answers with --json.
type failure struct {
	Problem string `json:"problem"`
}

// refuse tells all problems of a command line, one a line, and in a document too if that is asked for.
func refuse(args []string, err error, stdout, stderr io.Writer) int {
	if _, asJSON := withoutJSON(args); asJSON {
		answer(stdout, io.Discard, true, failure{err.Error()}, "", nil)
	}
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintln(stderr, "flanneld: "+strings.TrimSpace(line)) //nolint:errcheck // there is no other way to tell
	}
	return exitUsage
}

// withoutJSON takes --json out of arguments, which may be wrong otherwise; those behind "--" are another program's.
func withoutJSON(args []string) (rest []string, found bool) {
	for i, arg := range args {
		switch {
		case arg == "--":
			return append(rest, args[i:]...), found
		case slices.Contains([]string{"--json", "-json", "--json=true", "-json=true"}, arg):
			found = true
		default:
			rest = append(rest, arg)
		}
	}
	return rest, found
}

// answer prints what a command has to say, as text or as one JSON document, and then its error, if any.
func answer(stdout, stderr io.Writer, asJSON bool, document any, text string, err error) int {
	var printed error
	if asJSON {
		enc := json.NewEncoder(stdout)
		enc.SetIndent("", "  ")
		printed = enc.Encode(document)
	} else if text != "" {
		_, printed = fmt.Fprintln(stdout, text)
	}
	return codeOf(errors.Join(err, printed), stderr)
}

func problem(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// ended says how a wait has: by its own time, or by a signal.
func ended(ctx context.Context, inTime string) string {
	if errors.Is(ctx.Err(), context.Canceled) {
		return "interrupted"
	}
	return inTime
}

// limit is a flag for a length of time above zero.
type limit time.Duration

func (l *limit) String() string { return time.Duration(*l).String() }

func (l *limit) Set(text string) error {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return errors.New("use a length of time above 0, such as 90s or 5m")
	}
	*l = limit(d)
	return nil
}

func limitFlag(flags *goflag.FlagSet, name string, usual time.Duration, help string) *time.Duration {
	flags.Var((*limit)(&usual), name, help)
	return &usual
}
