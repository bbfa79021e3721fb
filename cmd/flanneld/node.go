package main

import (
	"context"
	"strings"

	"flannel/pkg/cleanup"
	"flannel/pkg/instance"
)

// node is this node, for commands that change what is on it.
func (c *call) node() cleanup.Node {
	return cleanup.Node{SubnetFile: c.SubnetFile, DataDir: usualDataDir(), Log: c.log}
}

// cleaned is what cleanup answers with --json.
type cleaned struct {
	DryRun  bool     `json:"dryRun"`
	Removed []string `json:"removed"` // or would be
	Problem string   `json:"problem,omitempty"`
}

// removeAll is the command cleanup.
func removeAll(c *call) func(context.Context) int {
	return nodeCommand{
		keys: "dryRun, removed, problem", did: "removed ", would: "would remove ", nothing: "nothing of flannel is on this node",
		do:       c.node().Remove,
		document: func(dryRun bool, done []string, problem string) any { return cleaned{dryRun, done, problem} },
	}.flags(c)
}

const aboutHandback = `flanneld handback prepares this node for flannel: it gives flanneld's routes the form that flannel gives
them, and removes the nexthop objects, through which flannel can neither delete nor replace a route. No
packet is lost. Stop flanneld first, and start flannel afterwards; a flanneld that starts instead takes
everything over again.

`

// handedBack is what handback answers with --json.
type handedBack struct {
	DryRun  bool     `json:"dryRun"`
	Done    []string `json:"done"` // or would be
	Problem string   `json:"problem,omitempty"`
}

// handback is the command that gives what flanneld put into this node's kernel the form that flannel can go on with.
func handback(c *call) func(context.Context) int {
	return nodeCommand{
		keys: "dryRun, done, problem", would: "would ",
		nothing:  "there is nothing to hand back: no route or nexthop object is of flanneld's form",
		do:       c.node().Handback,
		document: func(dryRun bool, done []string, problem string) any { return handedBack{dryRun, done, problem} },
	}.flags(c)
}

// nodeCommand is a command that changes what flanneld left on this node, and so must not run beside the daemon.
type nodeCommand struct {
	keys       string // of the JSON document
	did, would string // before each thing that was, or in a dry run would be, done
	nothing    string // the answer if there is nothing to do
	// do returns what it did, or would do.
	do       func(ctx context.Context, dryRun bool) (done []string, err error)
	document func(dryRun bool, done []string, problem string) any
}

func (n nodeCommand) flags(c *call) func(context.Context) int {
	dryRun := c.flags.Bool("dry-run", false, "only show what would be done")
	c.jsonFlag("print one JSON document: " + n.keys)
	return func(ctx context.Context) int {
		if !*dryRun {
			release, err := instance.Hold(ctx, c.SubnetFile, c.Kube.PodName, c.log, 0)
			if err != nil {
				return heldCode(err, c.answer(n.document(*dryRun, []string{}, problem(err)), "", err))
			}
			defer release() //nolint:errcheck // the process ends
		}
		done, err := n.do(ctx, *dryRun)
		before, text := n.did, ""
		if *dryRun {
			before = n.would
		}
		switch {
		case len(done) > 0:
			text = before + strings.Join(done, "\n"+before)
		case err == nil:
			text = n.nothing
		}
		return c.answer(n.document(*dryRun, append([]string{}, done...), problem(err)), text, err)
	}
}
