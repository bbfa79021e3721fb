package main

import (
	"encoding/json"
	"errors"
	goflag "flag"
	"fmt"
	"io"
)

// parseCommand reads a subcommand's own arguments; about stands before its flags in its help. done: there is nothing left to
// do but to end with code.
func parseCommand(flags *goflag.FlagSet, about string, o options, stdout, stderr io.Writer) (done bool, code int) {
	flags.Init("flanneld "+o.Command, goflag.ContinueOnError)
	flags.SetOutput(stdout)
	if about != "" { // else Go's own, which begins with the command's name
		flags.Usage = func() {
			fmt.Fprint(stdout, about) //nolint:errcheck // there is no other way to tell
			flags.PrintDefaults()
		}
	}
	err := flags.Parse(o.Args)
	switch {
	case errors.Is(err, goflag.ErrHelp):
		return true, exitOK
	case err == nil && flags.NArg() > 0:
		err = fmt.Errorf("%s takes no argument %.40q; see --help", o.Command, flags.Arg(0))
		fallthrough
	case err != nil:
		fmt.Fprintln(stderr, "flanneld:", err) //nolint:errcheck // there is no other way to tell
		return true, exitUsage
	}
	return false, exitOK
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
	return code(errors.Join(err, printed), stderr)
}
