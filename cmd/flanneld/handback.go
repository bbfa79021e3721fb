package main

import (
	"context"
	"io"
	"log/slog"

	"flannel/pkg/dataplane"
	"flannel/pkg/instance"
)

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

// handback gives what flanneld put into this node's kernel the form that flannel can go on with.
func handback(ctx context.Context, o options, log *slog.Logger, stdout, stderr io.Writer) int {
	return nodeCommand{
		about: aboutHandback, keys: "dryRun, done, problem", would: "would ",
		nothing: "there is nothing to hand back: no route or nexthop object is of flanneld's form",
		do: func(dryRun bool) ([]string, error) {
			return dataplane.Handback(ctx, dataplane.Options{Log: log, Instance: instance.Of(o.SubnetFile)}, networksOf(o, log), dryRun)
		},
		document: func(dryRun bool, done []string, problem string) any { return handedBack{dryRun, done, problem} },
	}.run(ctx, o, log, stdout, stderr)
}
