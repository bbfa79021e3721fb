package main

import (
	"context"
	"strings"
)

// node returns this node for commands that change its state.
func (c *call) node() cleaner {
	return cleaner{SubnetFile: c.SubnetFile, Log: c.log, System: cleanupSystem}
}

const aboutCleanup = `Removes everything that flanneld and flannel left on this node: devices, routes, firewall rules and files.
It refuses to do so beside a running flanneld or flannel with the same subnet file: stop it first. If that
is the default subnet file, and the file is gone, it refuses beside any flanneld or flannel, because then it
would remove what any of them made. On Windows it only finds a flanneld with the same subnet file: stop any other
flanneld or flannel yourself. On Linux, a subnet file that cannot be read is an error, and nothing is removed:
repair the file. If it is the default one, and no other flanneld has a network on this host, it may be deleted
instead. --dry-run lists what would be removed, also beside a running daemon.`

// cleanupAnswer is the JSON document of cleanup.
type cleanupAnswer struct {
	DryRun  bool     `json:"dryRun"`
	Removed []string `json:"removed"` // in a dry run: what would be removed
	Problem string   `json:"problem,omitempty"`
}

// cleanupCommand is the command cleanup.
func cleanupCommand(c *call) func(context.Context) int {
	return nodeCommand{
		keys: "dryRun, removed, problem", did: "removed ", would: "would remove ", nothing: "found nothing of flannel on this node",
		do:       c.node().Remove,
		document: func(dryRun bool, done []string, problem string) any { return cleanupAnswer{dryRun, done, problem} },
	}.flags(c)
}

const aboutHandback = `flanneld handback prepares this node for flannel: it converts flanneld's routes to the form of flannel's
routes, and removes the nexthop objects, because flannel can neither delete nor replace a route that uses
one. No packet is lost. Stop flanneld first, and start flannel afterwards. If flanneld is started
instead, it takes over the routes again. A subnet file that cannot be read is an error, as for cleanup.`

// handbackAnswer is the JSON document of handback.
type handbackAnswer struct {
	DryRun  bool     `json:"dryRun"`
	Done    []string `json:"done"` // in a dry run: what would be done
	Problem string   `json:"problem,omitempty"`
}

// handback is the command handback.
func handback(c *call) func(context.Context) int {
	return nodeCommand{
		keys: "dryRun, done, problem", would: "would ",
		nothing:  "nothing to convert: no route or nexthop object has flanneld's form",
		do:       c.node().Handback,
		document: func(dryRun bool, done []string, problem string) any { return handbackAnswer{dryRun, done, problem} },
	}.flags(c)
}

// nodeCommand is a command that changes what flanneld left on this node. It
// must not run at the same time as the daemon, therefore it takes the daemon's
// lock, except for a dry run.
type nodeCommand struct {
	keys       string // of the JSON document, for the help
	did, would string // prefix of each line of the text; would is for a dry run
	nothing    string // the text if there is nothing to do
	// do returns what it did, or would do in a dry run: for cleanup objects, such as
	// "device flannel.1", for handback actions, such as "remove device flannel.1".
	do       func(ctx context.Context, dryRun bool) (done []string, err error)
	document func(dryRun bool, done []string, problem string) any
}

// flags declares the flags of all such commands, and returns the function that holds
// the lock, calls do and prints the answer.
func (n nodeCommand) flags(c *call) func(context.Context) int {
	dryRun := c.flags.Bool("dry-run", false, "only show what would be done")
	c.jsonFlag("print one JSON document: " + n.keys)
	return func(ctx context.Context) int {
		if !*dryRun {
			// 0: do not wait, a running daemon does not end soon. The pod's name is for the
			// message of another process that finds the lock held.
			release, err := holdInstance(ctx, c.SubnetFile, c.Kube.PodName, c.log, 0)
			if err == nil {
				defer release()        //nolint:errcheck // the process ends
				err = c.daemonBeside() // flannel, for example, does not take the lock
			}
			if err != nil {
				// The exit status is not that of answer, because a held lock has its own.
				c.answer(n.document(*dryRun, []string{}, problem(err)), "", err)
				return exitCode(err)
			}
		}
		done, err := n.do(ctx, *dryRun)
		// What was done before an error is reported together with it.
		prefix, text := n.did, ""
		if *dryRun {
			prefix = n.would
		}
		switch {
		case len(done) > 0:
			text = prefix + strings.Join(done, "\n"+prefix)
		case err == nil:
			text = n.nothing
		}
		return c.answer(n.document(*dryRun, append([]string{}, done...), problem(err)), text, err)
	}
}
