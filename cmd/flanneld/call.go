package main

import (
	"encoding/json"
	"errors"
	goflag "flag"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"flannel/pkg/flags"
)

// process holds what the program takes from its process, so that tests can replace it.
type process struct {
	args, environ  []string // args without the program's name, environ as from os.Environ
	stdout, stderr io.Writer
	events         slog.Handler // event log of a Windows service, which has no stderr; nil in the foreground
	confine        func() error // forbids the process to use the network for good; nil in tests
}

func (p process) giveUpNetwork() error {
	if p.confine == nil {
		return nil
	}
	return p.confine()
}

// call is one invocation of a command.
type call struct {
	options // Args are the command's own arguments
	process
	log   *slog.Logger
	flags goflag.FlagSet
	json  bool // print one JSON document
}

// parse parses the command's own arguments. about is printed before the flags in the command's help. If done is true,
// the caller must return code, because help or an error was printed.
func (c *call) parse(about string) (done bool, code int) {
	var help strings.Builder // only printed if asked for: after a mistake it would hide the error
	c.flags.Init("flanneld "+c.Command, goflag.ContinueOnError)
	c.flags.SetOutput(&help)
	if about != "" { // else Go's default, which begins with the command's name
		c.flags.Usage = func() {
			help.WriteString(about)
			c.flags.PrintDefaults()
		}
	}
	err := c.flags.Parse(c.Args)
	switch {
	case errors.Is(err, goflag.ErrHelp):
		_, err := io.WriteString(c.stdout, help.String())
		return true, c.reportError(err)
	case err != nil:
		err = fmt.Errorf("%s: %w", c.Command, err)
	case c.flags.NArg() > 0:
		err = fmt.Errorf("%s takes no argument %.40q", c.Command, c.flags.Arg(0))
	default:
		return false, exitOK
	}
	return true, c.reportUsage(fmt.Errorf("%w; see flanneld %s --help", err, c.Command))
}

// jsonFlag declares --json.
func (c *call) jsonFlag(help string) { c.flags.BoolVar(&c.json, "json", false, help) }

// failure is the JSON document of a command that failed before it could do anything.
type failure struct {
	Problem string `json:"problem"`
}

// reportUsage reports all problems of the command's arguments.
func (c *call) reportUsage(err error) int { return c.process.reportUsage(c.Args, err) }

// answer prints the command's result, as text or as one JSON document, and its error to stderr, if any. It returns the
// exit code.
func (c *call) answer(document any, text string, err error) int {
	return c.process.answer(c.json, document, text, err)
}

// fail is answer for a command that has no result but an error.
func (c *call) fail(err error) int { return c.answer(failure{err.Error()}, "", err) }

// reportUsage prints all problems of a command line to stderr, one per line, and with --json also a document to stdout.
// It returns exitUsage.
func (p process) reportUsage(args []string, err error) int {
	if _, asJSON := withoutJSON(args); asJSON {
		quiet := p
		quiet.stderr = io.Discard
		quiet.answer(true, failure{err.Error()}, "", nil)
	}
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintln(p.stderr, "flanneld: "+strings.TrimSpace(line)) //nolint:errcheck // stderr is the last resort
	}
	return exitUsage
}

func (p process) answer(asJSON bool, document any, text string, err error) int {
	var printed error
	if asJSON {
		printed = p.print(document)
	} else if text != "" {
		_, printed = fmt.Fprintln(p.stdout, text)
	}
	return p.reportError(errors.Join(err, printed))
}

// print prints one JSON document.
func (p process) print(document any) error {
	enc := json.NewEncoder(p.stdout)
	enc.SetIndent("", "  ")
	return enc.Encode(document)
}

// reportError prints an error to stderr and returns exitError; for nil it returns exitOK.
func (p process) reportError(err error) int {
	if err == nil {
		return exitOK
	}
	fmt.Fprintln(p.stderr, "flanneld:", err) //nolint:errcheck // stderr is the last resort
	return exitError
}

func problem(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// withoutJSON removes --json from arguments that may be invalid otherwise. Arguments after "--" are not the command's.
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

// limitFlag declares a flag for a positive duration.
func (c *call) limitFlag(name string, usual time.Duration, help string) *time.Duration {
	c.flags.Var((*flags.Limit)(&usual), name, help)
	return &usual
}
