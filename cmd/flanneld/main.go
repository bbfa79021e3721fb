// Command flanneld gives this node its part of a cluster's pod network and makes every other node's part reachable.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"flannel/pkg/sandbox"
)

func main() {
	p := process{args: os.Args[1:], environ: os.Environ(), stdout: os.Stdout, stderr: os.Stderr, confine: sandbox.NoNetwork}
	if isService(p.args) {
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
