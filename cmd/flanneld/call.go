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

// process is what the program was started with.
type process struct {
	args, environ  []string // without the program's name; as of os.Environ
	stdout, stderr io.Writer
	events         slog.Handler // of a Windows service, which has no stderr; else nil
	confine        func() error // gives up the use of the network for good; nil where others share the process
}

func (p process) giveUpNetwork() error {
	if p.confine == nil {
		return nil
	}
	return p.confine()
}

// call is a command as it was called.
type call struct {
	options // Args are the command's own arguments
	process
	log   *slog.Logger
	flags goflag.FlagSet
	json  bool // print one JSON document
}

// parse reads the command's own arguments; about stands before its flags in its help. done: there is nothing left to do but to
// end with code.
func (c *call) parse(about string) (done bool, code int) {
	var help strings.Builder // of a mistake too, who would look for the reason above a page of help
	c.flags.Init("flanneld "+c.Command, goflag.ContinueOnError)
	c.flags.SetOutput(&help)
	if about != "" { // else Go's own, which begins with the command's name
		c.flags.Usage = func() {
			help.WriteString(about)
			c.flags.PrintDefaults()
		}
	}
	err := c.flags.Parse(c.Args)
	switch {
	case errors.Is(err, goflag.ErrHelp):
		_, err := io.WriteString(c.stdout, help.String())
		return true, c.codeOf(err)
	case err != nil:
		err = fmt.Errorf("%s: %w", c.Command, err)
	case c.flags.NArg() > 0:
		err = fmt.Errorf("%s takes no argument %.40q", c.Command, c.flags.Arg(0))
	default:
		return false, exitOK
	}
	return true, c.refuse(fmt.Errorf("%w; see flanneld %s --help", err, c.Command))
}

// jsonFlag declares --json.
func (c *call) jsonFlag(help string) { c.flags.BoolVar(&c.json, "json", false, help) }

// failure is what a command that could do nothing answers with --json.
type failure struct {
	Problem string `json:"problem"`
}

// refuse tells all problems of the command's arguments.
func (c *call) refuse(err error) int { return c.process.refuse(c.Args, err) }

// answer prints what the command has to say, as text or as one JSON document, and then its error, if any.
func (c *call) answer(document any, text string, err error) int {
	return c.process.answer(c.json, document, text, err)
}

// fail answers with nothing but an error.
func (c *call) fail(err error) int { return c.answer(failure{err.Error()}, "", err) }

// refuse tells all problems of a command line, one a line, and in a document too if that is asked for.
func (p process) refuse(args []string, err error) int {
	if _, asJSON := withoutJSON(args); asJSON {
		quiet := p
		quiet.stderr = io.Discard
		quiet.answer(true, failure{err.Error()}, "", nil)
	}
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintln(p.stderr, "flanneld: "+strings.TrimSpace(line)) //nolint:errcheck // there is no other way to tell
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
	return p.codeOf(errors.Join(err, printed))
}

// print prints one JSON document.
func (p process) print(document any) error {
	enc := json.NewEncoder(p.stdout)
	enc.SetIndent("", "  ")
	return enc.Encode(document)
}

// codeOf tells an error, if there is one, and is the exit code that goes with it.
func (p process) codeOf(err error) int {
	if err == nil {
		return exitOK
	}
	fmt.Fprintln(p.stderr, "flanneld:", err) //nolint:errcheck // there is no other way to tell
	return exitError
}

func problem(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
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

// limitFlag declares a flag for a length of time above zero.
func (c *call) limitFlag(name string, usual time.Duration, help string) *time.Duration {
	c.flags.Var((*flags.Limit)(&usual), name, help)
	return &usual
}
