package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"path/filepath"
	"runtime"
	"slices"

	"flannel/pkg/dataplane"
	"flannel/pkg/firewall"
	"flannel/pkg/instance"
	"flannel/subnet"
)

// cleaned is what cleanup answers with --json.
type cleaned struct {
	DryRun  bool     `json:"dryRun"`
	Removed []string `json:"removed"` // or would be
	Problem string   `json:"problem,omitempty"`
}

// cleanup removes all that flanneld, or flannel, put into this node's kernel or HNS, and nothing else: see the ownership
// table in Documentation/architecture.md. The subnet file and the lease stay.
func cleanup(ctx context.Context, o options, log *slog.Logger, stdout, stderr io.Writer) int {
	return nodeCommand{
		keys: "dryRun, removed, problem", did: "removed ", would: "would remove ", nothing: "nothing of flannel is on this node",
		do:       func(dryRun bool) ([]string, error) { return removeAll(ctx, o, log, dryRun) },
		document: func(dryRun bool, done []string, problem string) any { return cleaned{dryRun, done, problem} },
	}.run(ctx, o, log, stdout, stderr)
}

func removeAll(ctx context.Context, o options, log *slog.Logger, dryRun bool) (removed []string, err error) {
	name := instance.Of(o.SubnetFile)
	fromVIP, err1 := cleanVIP(ctx, o, log, dryRun) // while its network is there
	fromSystem, err2 := dataplane.Cleanup(ctx, dataplane.Options{Log: log, Instance: name, StateDir: filepath.Dir(o.SubnetFile)}, networksOf(o, log), dryRun)
	fromFirewall, err3 := firewall.Cleanup(ctx, firewall.Options{Log: log, Instance: name}, dryRun)
	return slices.Concat(fromVIP, fromSystem, fromFirewall), errors.Join(err1, err2, err3)
}

// networksOf reads the pod networks from the subnet file; nil if they are not known.
func networksOf(o options, log *slog.Logger) []netip.Prefix {
	env, err := subnet.ReadEnv(o.SubnetFile)
	switch {
	case err != nil && instance.Of(o.SubnetFile) != "":
		log.Warn("could not read the pod network, so devices and routes, which may be those of another flanneld, stay", "error", err)
	case err != nil:
		log.Warn("could not read the pod network, so this takes in what every flanneld on this host made, and leaves the routes that a flannel made", "error", err)
	}
	return slices.DeleteFunc([]netip.Prefix{env.V4Network, env.V6Network}, func(p netip.Prefix) bool { return !p.IsValid() })
}

// cleanVIP takes away kube-proxy's source VIP on Windows.
func cleanVIP(ctx context.Context, o options, log *slog.Logger, dryRun bool) (removed []string, err error) {
	if runtime.GOOS != "windows" {
		return nil, nil
	}
	k, err := newKeeper(o, usualDataDir(), log)
	if err != nil {
		return nil, err
	}
	do := k.Release
	if dryRun {
		do = k.Remains
	}
	if removed, err = do(ctx); err != nil {
		err = fmt.Errorf("kube-proxy's source VIP: %w", err)
	}
	return removed, err
}
