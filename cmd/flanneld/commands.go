package main

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
)

// command is a row in the table of commands. The table defines the help, the
// names that the command line accepts, and the functions to run.
type command struct {
	name, help string
	about      string // printed before the flags in the command's own help; "": the heading of Go's flag package
	// flags declares the command's own flags and returns the function to run after
	// they are parsed, which returns the exit code. The flags' values are variables
	// of the closure.
	flags func(*call) func(context.Context) int
	// run replaces flags if a command parses its arguments itself.
	run     func(context.Context, *call) int
	windows bool // it fails on other systems
}

// commands returns the table. A new command needs one function and one row here.
func commands() []command {
	return []command{
		{name: "status", flags: showStatus,
			help: "show the state of the running daemon: lease, devices, peers, errors (see its --help)"},
		{name: "accept-withdrawal", flags: acceptWithdrawal, about: aboutAcceptWithdrawal,
			help: "drop the peers that the daemon retains after the store lost many at once (see its --help)"},
		{name: "doctor", flags: doctorCommand,
			help: "check this node for common problems, and suggest fixes (see its --help)"},
		{name: "wait", flags: wait, about: aboutWait,
			help: "wait until the daemon is ready, and print what it waits for (see its --help)"},
		{name: "cni-conf", flags: makeCNIConf, about: aboutCNIConf,
			help: "write the CNI configuration of a Windows node (see its --help)"},
		{name: "install-cni", flags: installCNI, about: aboutInstallCNI,
			help: "install the CNI plugin and its configuration (see its --help)"},
		{name: "net-conf", flags: makeNetConf, about: aboutNetConf,
			help: "write the network configuration of a Windows node if it does not exist (see its --help)"},
		{name: "prepare", flags: prepare, about: aboutPrepare, windows: true,
			help: "Windows: create the adapter's virtual switch before anything depends on the network (see its --help)"},
		{name: "source-vip", flags: sourceVIP, about: aboutSourceVIP, windows: true,
			help: "Windows: reserve kube-proxy's source VIP on an overlay, and publish it (see its --help)"},
		{name: "service", run: service,
			help: "Windows: install, uninstall, start, stop or show the service (see its --help)"},
		{name: "handback", flags: handback, about: aboutHandback,
			help: "Linux: convert the routes to flannel's form, before flannel runs here again (--dry-run only shows it)"},
		{name: "cleanup", flags: cleanupCommand,
			help: "remove everything that flanneld and flannel left on this node (--dry-run only shows it)"},
	}
}

func commandNames() (names []string) {
	for _, c := range commands() {
		names = append(names, c.name)
	}
	return names
}

// runCommand runs the command o.Command. parseOptions has checked that it exists.
func runCommand(ctx context.Context, o options, p process, log *slog.Logger) int {
	all := commands()
	i := slices.IndexFunc(all, func(c command) bool { return c.name == o.Command })
	return all[i].do(ctx, &call{options: o, process: p, log: log})
}

// do parses the command's flags, unless the command does that itself, and runs it.
func (cmd command) do(ctx context.Context, c *call) int {
	if cmd.run != nil {
		return cmd.run(ctx, c)
	}
	run := cmd.flags(c)
	if done, code := c.parse(cmd.about); done {
		return code
	}
	// After parsing, so that --help works on every system.
	if cmd.windows && runtime.GOOS != "windows" {
		return c.fail(fmt.Errorf("%s: only needed on Windows, not on %s", cmd.name, runtime.GOOS))
	}
	return run(ctx)
}
