package main

import (
	"cmp"
	"context"
	goflag "flag"
	"io"
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
func showStatus(ctx context.Context, o options, stdout, stderr io.Writer) int {
	var flags goflag.FlagSet
	asJSON := flags.Bool("json", false, "print the daemon's answer as it is: one JSON document; without one: ready, problem")
	peers := flags.Bool("peers", false, "list every peer, not only those that are not in step")
	timeout := limitFlag(&flags, "timeout", 5*time.Second, "how long to wait for the `answer`")
	if done, code := parseCommand(&flags, "", o, stdout, stderr); done {
		return code
	}
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	r, err := status.Ask(ctx, status.Socket(o.SubnetFile))
	if err != nil {
		return notAnswered(stdout, stderr, *asJSON, err)
	}
	var text strings.Builder
	if err = status.Print(&text, r, time.Now(), *peers); err != nil {
		return codeOf(err, stderr)
	}
	exit := answer(stdout, stderr, *asJSON, r, strings.TrimSuffix(text.String(), "\n"), nil)
	if exit == exitOK && !r.Ready {
		return exitNotWell
	}
	return exit
}
