package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"time"

	"flannel/pkg/daemon"
	"flannel/pkg/health"
	"flannel/pkg/status"
	"flannel/pkg/version"
)

// answerStatus answers, until ctx ends, whoever asks how the daemon is, and accepts a withdrawal for root.
func answerStatus(ctx context.Context, o options, h *health.Status, view *daemon.View, accept func() int, others http.Handler, log *slog.Logger) error {
	started := time.Now()
	report := func() status.Report {
		r := status.Report{Version: version.String(), PID: os.Getpid(), Started: started, Since: h.Since(), Ready: true, Store: "etcd"}
		if o.Kube.On {
			r.Store = "kubernetes"
		}
		if r.Since.IsZero() {
			r.Since = started
		}
		if err := cmp.Or(h.Alive(), h.Ready()); err != nil {
			r.Ready, r.Problem = false, err.Error()
		}
		if err := h.Explanation(); err != nil {
			r.Outage = err.Error()
		}
		view.Fill(&r)
		return r
	}
	return status.Keep(ctx, status.Socket(o.SubnetFile), status.Handler(report, accept, others), log)
}

// showStatus is the command that asks the daemon and prints what it says.
func showStatus(c *call) func(context.Context) int {
	c.jsonFlag("print the daemon's answer as it is: one JSON document; without one: ready, problem")
	peers := c.flags.Bool("peers", false, "list every peer, not only those that are not in step")
	timeout := c.limitFlag("timeout", 5*time.Second, "how long to wait for the `answer`")
	return func(ctx context.Context) int {
		ctx, cancel := context.WithTimeout(ctx, *timeout)
		defer cancel()
		r, err := status.Ask(ctx, status.Socket(c.SubnetFile))
		if err != nil {
			return c.notAnswered(err)
		}
		var text strings.Builder
		if err = status.Print(&text, r, time.Now(), *peers); err != nil {
			return c.codeOf(err)
		}
		exit := c.answer(r, strings.TrimSuffix(text.String(), "\n"), nil)
		if exit == exitOK && !r.Ready {
			return exitNotWell
		}
		return exit
	}
}

const aboutAcceptWithdrawal = `flanneld accept-withdrawal [flags]

When the store loses more than max(3, 20 %) of the peers within --retain-peers, or lacks them when the daemon starts, the
daemon retains them for that long: nobody may have meant it. If they are gone for good, this lets them go at once, on this node. If this node's own lease
was withdrawn with them, the daemon ends.

`

// acceptWithdrawal is the command that lets retained peers go.
func acceptWithdrawal(c *call) func(context.Context) int {
	c.jsonFlag("print one JSON document: dropped, the number of peers; without an answer: ready, problem")
	timeout := c.limitFlag("timeout", 5*time.Second, "how long to wait for the `answer`")
	return func(ctx context.Context) int {
		ctx, cancel := context.WithTimeout(ctx, *timeout)
		defer cancel()
		done, err := status.Accept(ctx, status.Socket(c.SubnetFile))
		if err != nil {
			return c.notAnswered(err)
		}
		text := fmt.Sprintf("%d retained peers are let go", done.Dropped)
		if done.Dropped == 0 {
			text = "no peer was retained"
		}
		return c.answer(done, text, nil)
	}
}

// notAnswered tells that the daemon could not be asked, and why.
func (c *call) notAnswered(err error) int {
	exit := c.answer(waited{false, problem(err)}, "", err)
	switch {
	case errors.Is(err, status.ErrNotRunning):
		return exitNotRunning
	case errors.Is(err, status.ErrNoAnswer):
		return exitNoAnswer
	}
	return exit
}
