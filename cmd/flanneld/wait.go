package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"flannel/pkg/status"
)

const aboutWait = `Waits until the daemon on this machine is ready, and says what it waits for: whenever that changes, and
once a minute. It asks /readyz at --healthz-port, and without that flag the socket beside the subnet
file (which Windows has since Server 2019).

  flanneld [--healthz-ip=IP] [--healthz-port=PORT] [--subnet-file=FILE] wait [flags]

The exit status is 3 when it is not ready in time, and 4 when nobody answers.
`

// waited is what wait answers with --json.
type waited struct {
	Ready   bool   `json:"ready"`
	Problem string `json:"problem,omitempty"` // what it waits for at the end
}

// wait is the command that waits for the daemon's readiness.
func wait(c *call) func(context.Context) int {
	limit := c.limitFlag("timeout", 15*time.Minute, "give up after this `time`, with the reason")
	silence := c.limitFlag("silence", 0, "give up when nobody has answered for this `time`: the daemon has ended; default: as --timeout")
	c.jsonFlag("at the end print one JSON document: ready, problem")
	return func(ctx context.Context) int {
		ctx, cancel := context.WithTimeout(ctx, *limit)
		defer cancel()
		told := func(reason string) { fmt.Fprintln(c.stderr, "waiting for flanneld:", reason) } //nolint:errcheck // it will be told at the end
		err := status.AwaitReady(ctx, status.Readiness(c.SubnetFile, c.Healthz), cmp.Or(*silence, *limit), told)
		text := "flanneld is ready"
		if err != nil {
			err, text = fmt.Errorf("wait: %w", err), ""
		}
		exit := c.answer(waited{err == nil, problem(err)}, text, err)
		switch {
		case errors.Is(err, status.ErrSilent):
			return exitNotRunning
		case err != nil:
			return exitNotWell
		}
		return exit
	}
}
