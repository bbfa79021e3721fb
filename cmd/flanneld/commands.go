package main

import (
	"context"
	"log/slog"
	"slices"
)

// command is a row in the table of commands, from which follow the help, what the command line takes, and what runs.
type command struct {
	name, help string
	about      string // stands before the flags in the command's own help; "": Go's own heading
	// flags declares the command's own flags and returns what runs once they are parsed.
	flags func(*call) func(context.Context) int
	// run stands in place of flags where a command reads its arguments itself.
	run func(context.Context, *call) int
}

// commands is the table. A new command is one function and one row here.
func commands() []command {
	return []command{
		{name: "status", flags: showStatus,
			help: "tell how the running daemon is: lease, devices, peers, errors (--help tells more)"},
		{name: "accept-withdrawal", flags: acceptWithdrawal, about: aboutAcceptWithdrawal,
			help: "let the peers go that the store lost all at once, and that the daemon retains (--help tells more)"},
		{name: "doctor", flags: examine,
			help: "look for what people run into, and say how to mend it (--help tells more)"},
		{name: "wait", flags: wait, about: aboutWait,
			help: "wait until the daemon is ready, and say what it waits for (--help tells more)"},
		{name: "cni-conf", flags: makeCNIConf, about: aboutCNIConf,
			help: "write the CNI configuration of a Windows node (--help tells more)"},
		{name: "install-cni", flags: installCNI, about: aboutInstallCNI,
			help: "put the CNI plugin and its configuration in place (--help tells more)"},
		{name: "net-conf", flags: makeNetConf, about: aboutNetConf,
			help: "write the network configuration of a Windows node where there is none (--help tells more)"},
		{name: "prepare", flags: prepare, about: aboutPrepare,
			help: "Windows: bind the adapter's virtual switch, once, before anything depends on it (--help tells more)"},
		{name: "source-vip", flags: sourceVIP, about: aboutSourceVIP,
			help: "Windows: reserve kube-proxy's source VIP on an overlay, and publish it (--help tells more)"},
		{name: "service", run: service,
			help: "Windows: install, uninstall, start, stop or show the service (--help tells more)"},
		{name: "handback", flags: handback, about: aboutHandback,
			help: "Linux: give the routes flannel's form, before a flannel runs here again (--dry-run shows it)"},
		{name: "cleanup", flags: removeAll,
			help: "remove everything that flanneld and flannel left on this node (--dry-run shows it)"},
	}
}

func commandNames() (names []string) {
	for _, c := range commands() {
		names = append(names, c.name)
	}
	return names
}

// runCommand runs the command that the options name.
func runCommand(ctx context.Context, o options, p process, log *slog.Logger) int {
	all := commands()
	i := slices.IndexFunc(all, func(c command) bool { return c.name == o.Command })
	return all[i].do(ctx, &call{options: o, process: p, log: log})
}

func (cmd command) do(ctx context.Context, c *call) int {
	if cmd.run != nil {
		return cmd.run(ctx, c)
	}
	run := cmd.flags(c)
	if done, code := c.parse(cmd.about); done {
		return code
	}
	return run(ctx)
}
