package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	goflag "flag"
	"io"
	"log/slog"
	"net/http"
	"os"
	"time"

	"flannel/pkg/daemon"
	"flannel/pkg/health"
	"flannel/pkg/status"
	"flannel/pkg/version"
)

// answerStatus answers, until ctx ends, whoever asks how the daemon is.
func answerStatus(ctx context.Context, o options, h *health.Status, view *daemon.View, others http.Handler, log *slog.Logger) error {
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
	return status.Keep(ctx, status.Socket(o.SubnetFile), status.Handler(report, others), log)
}

// showStatus is the command that asks the daemon and prints what it says.
func showStatus(ctx context.Context, o options, stdout, stderr io.Writer) int {
	var flags goflag.FlagSet
	asJSON := flags.Bool("json", false, "print the daemon's answer as it is: one JSON document")
	peers := flags.Bool("peers", false, "list every peer, not only those that are not in step")
	timeout := flags.Duration("timeout", 5*time.Second, "how long to wait for the answer")
	if done, code := parseCommand(&flags, "", o, stdout, stderr); done {
		return code
	}
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	r, err := status.Ask(ctx, status.Socket(o.SubnetFile))
	switch {
	case errors.Is(err, status.ErrNotRunning):
		code(err, stderr)
		return exitNotRunning
	case errors.Is(err, status.ErrNoAnswer):
		code(err, stderr)
		return exitNoAnswer
	case err != nil:
		return code(err, stderr)
	}
	if *asJSON {
		enc := json.NewEncoder(stdout)
		enc.SetIndent("", "  ")
		err = enc.Encode(r)
	} else {
		err = status.Print(stdout, r, time.Now(), *peers)
	}
	if err != nil {
		return code(err, stderr)
	}
	if !r.Ready {
		return exitNotWell
	}
	return exitOK
}
