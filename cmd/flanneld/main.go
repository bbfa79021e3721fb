// Command flanneld gives this node its part of a cluster's pod network and makes every other node's part reachable.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	p := process{os.Args[1:], os.Environ(), os.Stdout, os.Stderr, nil}
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
