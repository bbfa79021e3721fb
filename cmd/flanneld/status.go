package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"time"

	"flannel/pkg/status"
	"flannel/pkg/version"
)

// addProcess adds to the board what does not change while the daemon runs.
func (o *options) addProcess(b *status.Board) {
	started := time.Now()
	b.Add(status.OfProcess, func(r *status.Report) {
		r.Version, r.PID, r.Started, r.Store, r.Settings = version.String(), os.Getpid(), started, "etcd", o.settings()
		if o.Kube.On {
			r.Store = "kubernetes"
		}
	})
}

// answerStatus serves the status socket until ctx ends: the report of the board, and for
// root accept-withdrawal. others serves the remaining paths (/healthz, /readyz,
// /metrics). The socket exists before the store is connected, so that flanneld status
// can say what a starting daemon waits for.
func answerStatus(ctx context.Context, o options, board *status.Board, accept func() int, others http.Handler, log *slog.Logger) error {
	return status.Keep(ctx, status.Socket(o.SubnetFile), status.Handler(board, o.Logging.Recent.Text, accept, onBehalf(o, others)), log)
}

const aboutStatus = `Shows the state of the running daemon: lease, devices, peers, errors.

With --cluster it asks the Kubernetes API instead, and prints one line for each Node: from its podCIDRs, its
annotations and its condition NetworkUnavailable, whose message has the version. The only permission that
it needs is to list nodes. On a node and in flannel's pods it finds the API server by itself; elsewhere,
give --kubeconfig-file before status, and --kube-annotation-prefix if the daemons have it.`

// showStatus is the command status: it declares the flags, and what it returns runs when they
// are parsed.
func showStatus(c *call) func(context.Context) int {
	c.jsonFlag("print the daemon's answer as one JSON document; if there is no answer: ready, problem; with --cluster: ready and nodes, or problem")
	var o status.PrintOptions
	c.flags.BoolVar(&o.EveryPeer, "peers", false, "a table of all peers, instead of those with problems")
	c.flags.BoolVar(&o.History, "history", false, "list errors of the past, with their times")
	watch := c.flags.Bool("watch", false, "show all peers in the terminal, with further columns, and follow changes until Ctrl-C")
	interval := c.limitFlag("interval", 2*time.Second, "of --watch")
	cluster := c.clusterFlags()
	output := c.flags.String("o", "", "`FORMAT` of the output: wide, --peers or --cluster with further columns; json, as --json")
	timeout := c.limitFlag("timeout", 5*time.Second, "how long to wait for the answer; with --cluster, for each page of 500 Nodes, or for all if the daemon asks")
	return func(ctx context.Context) int {
		switch *output {
		case "":
		case "json":
			c.json = true
		case "wide":
			o.EveryPeer, o.Wide = true, true
		default:
			return c.reportUsage(fmt.Errorf("status: -o: %.40q is unknown; use wide or json", *output))
		}
		if err := cluster.check(c.flags); err != nil {
			return c.reportUsage(fmt.Errorf("status: %w", err))
		}
		if cluster.on {
			return c.showCluster(ctx, cluster.selector, o.Wide, *timeout)
		}
		if *watch {
			switch {
			case c.json:
				return c.reportUsage(errors.New("status: --watch is for people; repeat --json instead"))
			case c.screen == nil:
				return c.reportUsage(errNoTerminal)
			}
			o.EveryPeer, o.Wide = true, true
			return c.watchStatus(ctx, o, *interval, *timeout)
		}
		ctx, cancel := context.WithTimeout(ctx, *timeout)
		defer cancel()
		r, err := status.Ask(ctx, status.Socket(c.SubnetFile))
		if err != nil {
			return c.reportNoAnswer(err)
		}
		var text strings.Builder
		if err = status.Print(&text, r, time.Now(), o); err != nil {
			return c.reportError(err)
		}
		exit := c.answer(r, strings.TrimSuffix(text.String(), "\n"), nil)
		if exit == exitOK && !r.Ready {
			return exitNotReady
		}
		return exit
	}
}

const aboutAcceptWithdrawal = `If more than max(3, 20 %) of the peers are deleted from the store within --retain-peers, or are missing
when the daemon starts, the daemon retains them for that time, because it may be a mistake. If it was
intended, this command drops them at once, on this node. If this node's own lease was deleted with them,
the daemon exits.`

// acceptWithdrawal is the command accept-withdrawal.
func acceptWithdrawal(c *call) func(context.Context) int {
	c.jsonFlag("print one JSON document: dropped, the number of peers; if there is no answer: ready, problem")
	timeout := c.limitFlag("timeout", 5*time.Second, "how long to wait for the answer")
	return func(ctx context.Context) int {
		ctx, cancel := context.WithTimeout(ctx, *timeout)
		defer cancel()
		done, err := status.Accept(ctx, status.Socket(c.SubnetFile))
		if err != nil {
			return c.reportNoAnswer(err)
		}
		text := fmt.Sprintf("dropped %d retained peers", done.Dropped)
		if done.Dropped == 0 {
			text = "no peers were retained"
		}
		return c.answer(done, text, nil)
	}
}

// reportNoAnswer reports that the daemon did not answer, and returns the exit
// code for the reason.
func (c *call) reportNoAnswer(err error) int {
	exit := c.answer(waitAnswer{false, problem(err)}, "", err)
	switch {
	case errors.Is(err, status.ErrNotRunning):
		return exitNotRunning
	case errors.Is(err, status.ErrNoAnswer):
		return exitNoAnswer
	}
	return exit
}
