package main

import (
	"context"
	goflag "flag"
	"io"
	"log/slog"
	"strings"

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
	var flags goflag.FlagSet
	dryRun := flags.Bool("dry-run", false, "only show what would be done")
	asJSON := flags.Bool("json", false, "print one JSON document: dryRun, done, problem")
	if done, code := parseCommand(&flags, aboutHandback, o, stdout, stderr); done {
		return code
	}
	if !*dryRun {
		release, err := holdNode(ctx, o, log, 0)
		if err != nil {
			return heldCode(err, answer(stdout, stderr, *asJSON, handedBack{*dryRun, []string{}, problem(err)}, "", err))
		}
		defer release() //nolint:errcheck // the process ends
	}
	all, err := dataplane.Handback(ctx, dataplane.Options{Log: log, Instance: instance.Of(o.SubnetFile)}, networksOf(o, log), *dryRun)
	text := strings.Join(all, "\n")
	if *dryRun && text != "" {
		text = "would " + strings.Join(all, "\nwould ")
	}
	if text == "" && err == nil {
		text = "there is nothing to hand back: no route or nexthop object is of flanneld's form"
	}
	return answer(stdout, stderr, *asJSON, handedBack{*dryRun, append([]string{}, all...), problem(err)}, text, err)
}
