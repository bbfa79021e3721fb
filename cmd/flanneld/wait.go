package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"flannel/pkg/status"
)

const aboutWait = `Waits until the daemon on this machine is ready. Prints what the daemon is waiting for, whenever that
changes and once a minute. It asks /readyz at --healthz-port, or without that flag the socket beside the
subnet file (on Windows since Server 2019).`

// waitAnswer is the JSON document of wait, and of the commands that get no
// answer from the daemon.
type waitAnswer struct {
	Ready   bool   `json:"ready"`
	Problem string `json:"problem,omitempty"` // what the daemon was still waiting for
}

// wait is the command wait.
func wait(c *call) func(context.Context) int {
	limit := c.limitFlag("timeout", 15*time.Minute, "give up after this time")
	silence := c.limitFlag("silence", 0, "give up if the daemon has not answered for this time, because it has ended; default: --timeout")
	c.jsonFlag("at the end print one JSON document: ready, problem")
	return func(ctx context.Context) int {
		ctx, cancel := context.WithTimeout(ctx, *limit)
		defer cancel()
		onWaiting := func(reason string) { fmt.Fprintln(c.stderr, "waiting for flanneld:", reason) } //nolint:errcheck // the final answer contains it too
		err := status.AwaitReady(ctx, status.Readiness(c.SubnetFile, c.Healthz), cmp.Or(*silence, *limit), onWaiting)
		text := "flanneld is ready"
		if err != nil {
			err, text = fmt.Errorf("wait: %w", err), ""
		}
		exit := c.answer(waitAnswer{err == nil, problem(err)}, text, err)
		switch {
		case errors.Is(err, status.ErrUnreachable):
			return exitNotRunning
		case err != nil:
			return exitNotReady
		}
		return exit
	}
}
