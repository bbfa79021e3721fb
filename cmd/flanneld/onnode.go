package main

import (
	"context"
	goflag "flag"
	"io"
	"log/slog"
	"strings"
)

// nodeCommand is a command that changes what flanneld left on this node, and so must not run beside the daemon.
type nodeCommand struct {
	about      string // help; "": Go's own
	keys       string // of the JSON document
	did, would string // before each thing that was, or in a dry run would be, done
	nothing    string // the answer if there is nothing to do
	// do returns what it did, or would do.
	do       func(dryRun bool) (done []string, err error)
	document func(dryRun bool, done []string, problem string) any
}

func (c nodeCommand) run(ctx context.Context, o options, log *slog.Logger, stdout, stderr io.Writer) int {
	var flags goflag.FlagSet
	dryRun := flags.Bool("dry-run", false, "only show what would be done")
	asJSON := flags.Bool("json", false, "print one JSON document: "+c.keys)
	if done, code := parseCommand(&flags, c.about, o, stdout, stderr); done {
		return code
	}
	if !*dryRun {
		release, err := holdNode(ctx, o, log, 0)
		if err != nil {
			return heldCode(err, answer(stdout, stderr, *asJSON, c.document(*dryRun, []string{}, problem(err)), "", err))
		}
		defer release() //nolint:errcheck // the process ends
	}
	done, err := c.do(*dryRun)
	before, text := c.did, ""
	if *dryRun {
		before = c.would
	}
	switch {
	case len(done) > 0:
		text = before + strings.Join(done, "\n"+before)
	case err == nil:
		text = c.nothing
	}
	return answer(stdout, stderr, *asJSON, c.document(*dryRun, append([]string{}, done...), problem(err)), text, err)
}
