// Command flanneld gives this node its part of a cluster's pod network and makes every other node's part reachable.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"flannel/pkg/logging"
	"flannel/pkg/sandbox"
	"flannel/pkg/winservice"
)

func main() {
	p := process{args: os.Args[1:], environ: os.Environ(), stdout: os.Stdout, stderr: os.Stderr, confine: sandbox.NoNetwork}
	if winservice.Started(p.args) {
		os.Exit(runService(p))
	}
	os.Exit(runForeground(p))
}

func runForeground(p process) int {
	// On Windows these are Ctrl-C and Ctrl-Break, and the closing of the console, logging off and the shutdown.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return run(ctx, p)
}

// runService runs the program under Windows' service manager, with the event log as its stderr.
func runService(p process) int {
	p.args = winservice.Arguments(p.args)
	log, closeLog, err := winservice.OpenEventLog()
	if err != nil {
		return p.codeOf(err)
	}
	defer closeLog() //nolint:errcheck // it only frees
	console := p
	p.stderr, p.events = logging.EventErrors{Log: log}, logging.NewEvents(log)
	code, err := winservice.Run(2*stopWithin, func(ctx context.Context) int { return run(ctx, p) })
	if err != nil {
		console.codeOf(err)
		return exitUsage
	}
	return code
}
