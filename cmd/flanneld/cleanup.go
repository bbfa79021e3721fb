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
	"runtime"
	"slices"
	"strings"

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
	var flags goflag.FlagSet
	dryRun := flags.Bool("dry-run", false, "only show what would be removed")
	asJSON := flags.Bool("json", false, "print one JSON document: dryRun, removed, problem")
	if done, code := parseCommand(&flags, "", o, stdout, stderr); done {
		return code
	}
	if !*dryRun {
		release, err := holdNode(ctx, o, log, 0)
		if err != nil {
			return heldCode(err, answer(stdout, stderr, *asJSON, cleaned{*dryRun, []string{}, problem(err)}, "", err))
		}
		defer release() //nolint:errcheck // the process ends
	}
	networks := networksOf(o, log)
	all, err := cleanVIP(ctx, o, log, *dryRun) // while its network is there
	fromSystem, err1 := dataplane.Cleanup(ctx, dataplane.Options{Log: log, Instance: instance.Of(o.SubnetFile), StateDir: filepath.Dir(o.SubnetFile)}, networks, *dryRun)
	fromFirewall, err2 := firewall.Cleanup(ctx, firewall.Options{Log: log, Instance: instance.Of(o.SubnetFile)}, *dryRun)
	all = slices.Concat(all, fromSystem, fromFirewall)
	err = errors.Join(err, err1, err2)
	verb := "removed "
	if *dryRun {
		verb = "would remove "
	}
	text := "nothing of flannel is on this node"
	if len(all) > 0 {
		text = verb + strings.Join(all, "\n"+verb)
	}
	return answer(stdout, stderr, *asJSON, cleaned{*dryRun, append([]string{}, all...), problem(err)}, text, err)
}

// networksOf reads the pod networks from the subnet file; nil if they are not known.
func networksOf(o options, log *slog.Logger) []netip.Prefix {
	env, err := subnet.ReadEnv(o.SubnetFile)
	if err != nil {
		log.Warn("the pod network is not known, so routes that a flannel made stay, and several flannelds are not told apart", "error", err)
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
