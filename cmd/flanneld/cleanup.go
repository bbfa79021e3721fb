package main

import (
	"context"
	"errors"
	goflag "flag"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"

	"flannel/pkg/dataplane"
	"flannel/pkg/firewall"
	"flannel/subnet"
)

// cleanup removes all that flanneld, or flannel, put into this node's kernel or HNS, and nothing else: see the ownership
// table in Documentation/architecture.md. The subnet file and the lease stay.
func cleanup(ctx context.Context, o options, log *slog.Logger, stdout io.Writer) error {
	flags := goflag.NewFlagSet("flanneld cleanup", goflag.ContinueOnError)
	flags.SetOutput(stdout)
	dryRun := flags.Bool("dry-run", false, "only show what would be removed")
	if err := flags.Parse(o.Args); errors.Is(err, goflag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("cleanup takes no argument %.40q; there is --dry-run", flags.Arg(0))
	}
	env, err := subnet.ReadEnv(o.SubnetFile)
	if err != nil {
		log.Warn("the pod network is not known, so routes that a flannel made stay", "error", err)
	}
	networks := slices.DeleteFunc([]netip.Prefix{env.V4Network, env.V6Network}, func(p netip.Prefix) bool { return !p.IsValid() })
	fromSystem, err1 := dataplane.Cleanup(ctx, dataplane.Options{Log: log, StateDir: filepath.Dir(o.SubnetFile)}, networks, *dryRun)
	fromFirewall, err2 := firewall.Cleanup(ctx, log, *dryRun)
	verb := "removed"
	if *dryRun {
		verb = "would remove"
	}
	all := append(fromSystem, fromFirewall...)
	for _, what := range all {
		fmt.Fprintln(stdout, verb, what) //nolint:errcheck // the work is done all the same
	}
	if len(all) == 0 {
		fmt.Fprintln(stdout, "nothing of flannel is on this node") //nolint:errcheck // likewise
	}
	return errors.Join(err1, err2)
}
