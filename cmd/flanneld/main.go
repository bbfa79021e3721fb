// Command flanneld assigns this node a subnet of a cluster's pod network, and
// makes the subnets of all other nodes reachable.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"flannel/pkg/logging"
	"flannel/pkg/windows/service"
)

func main() {
	// cobra would refuse to run when started from Windows' Explorer. To find out, it
	// asks for the parent process.
	cobra.MousetrapHelpText = ""
	p := process{args: os.Args[1:], environ: os.Environ(), stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, confine: confine}
	p.terminal = term.IsTerminal(int(os.Stderr.Fd()))
	p.screen = screenOf(os.Stdout)
	if service.Started(p.args) {
		os.Exit(runService(p))
	}
	os.Exit(runForeground(p))
}

// screenOf returns a function that reads the size of the terminal that f is, and
// nil if it is none.
func screenOf(f *os.File) func() (columns, lines int) {
	if !term.IsTerminal(int(f.Fd())) {
		return nil
	}
	return func() (columns, lines int) {
		columns, lines, _ = term.GetSize(int(f.Fd())) // 0: unknown
		return columns, lines
	}
}

// runForeground runs the program until it ends, or a signal stops it.
func runForeground(p process) int {
	// On Windows, Interrupt is Ctrl-C and Ctrl-Break; SIGTERM is closing the
	// console, logging off and shutting down.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return run(ctx, p)
}

// runService runs the program as a Windows service, with the event log as its
// stderr. Errors of the service itself go to the real stderr.
func runService(p process) int {
	p.args, _ = service.Arguments(p.args)
	stderr, events, closeLog, err := logging.OpenEventLog(service.Name)
	if err != nil {
		return p.reportError(err)
	}
	defer closeLog() //nolint:errcheck // nothing is lost, it only frees the handle
	console := p
	p.stderr, p.events = stderr, events
	// Twice as long as serve needs, so that the service manager does not give up first.
	code, err := service.Run(2*stopWithin, func(ctx context.Context) int { return run(ctx, p) })
	if err != nil { // such as a person who runs flanneld service run
		console.reportError(err)
		return exitUsage
	}
	return code
}
