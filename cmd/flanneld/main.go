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
	// On Windows these are Ctrl-C and Ctrl-Break, and the closing of the console, logging off and the shutdown.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, p)
	stop()
	os.Exit(code)
}
