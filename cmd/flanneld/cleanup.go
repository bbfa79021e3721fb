package main

// A cleaner removes what flanneld or flannel created on this node, or converts
// it so that flannel can take over.

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"

	"flannel/pkg/dataplane"
	"flannel/pkg/firewall"
	"flannel/subnet"
)

// cleaner identifies the flanneld on this node by its subnet file.
type cleaner struct {
	SubnetFile string
	Log        *slog.Logger
	System     system
}

// system has the functions of one operating system. Each returns a description of what it
// did, or with dryRun would do.
type system struct {
	// SourceVIP releases kube-proxy's source VIP, while its HNS network is still there; nil:
	// the system has none.
	SourceVIP func(ctx context.Context, subnetFile string, log *slog.Logger, dryRun bool) ([]string, error)
	// Driver removes the devices and routes, or the HNS networks and routes. networks are the
	// pod networks; none: they are not known (see cleaner.networks for what stays then).
	Driver func(ctx context.Context, o dataplane.Options, networks []netip.Prefix, dryRun bool) ([]string, error)
	// Handback converts routes to the form of flannel's.
	Handback func(ctx context.Context, o dataplane.Options, networks []netip.Prefix, dryRun bool) ([]string, error)
	// Firewall removes the rules in the firewall.
	Firewall func(ctx context.Context, o firewall.Options, dryRun bool) ([]string, error)
}

// Remove removes everything that flanneld or flannel created in this node's kernel or
// HNS, and nothing else (see the ownership table in Documentation/architecture.md).
// The subnet file and the lease stay. It returns a description of each object that it
// removed, or with dryRun would remove.
func (n cleaner) Remove(ctx context.Context, dryRun bool) (removed []string, err error) {
	var fromVIP []string
	var err1 error
	if n.System.SourceVIP != nil {
		fromVIP, err1 = n.System.SourceVIP(ctx, n.SubnetFile, n.Log, dryRun)
	}
	fromSystem, err2 := n.System.Driver(ctx, n.options(), n.networks(), dryRun)
	fromFirewall, err3 := n.System.Firewall(ctx, firewall.Options{Log: n.Log, Instance: instanceOf(n.SubnetFile)}, dryRun)
	return slices.Concat(fromVIP, fromSystem, fromFirewall), errors.Join(err1, err2, err3)
}

// Handback converts flanneld's routes to the form of flannel's. It returns a
// description of each change that it made, or with dryRun would make.
func (n cleaner) Handback(ctx context.Context, dryRun bool) (done []string, err error) {
	return n.System.Handback(ctx, n.options(), n.networks(), dryRun)
}

// options returns the options of the driver that removes what the daemon left.
func (n cleaner) options() dataplane.Options {
	return dataplane.Options{Log: n.Log, Instance: instanceOf(n.SubnetFile), StateDir: filepath.Dir(n.SubnetFile)}
}

// networks returns the pod networks in the subnet file, none if it cannot be read.
func (n cleaner) networks() []netip.Prefix {
	env, err := subnet.ReadEnv(n.SubnetFile)
	switch {
	case err != nil && instanceOf(n.SubnetFile) != "":
		n.Log.Warn("could not read the pod network, keeping devices and routes, which may belong to another flanneld", "error", err)
	case err != nil:
		n.Log.Warn("could not read the pod network, including the objects of every flanneld on this host and keeping routes of flannel", "error", err)
	}
	return slices.DeleteFunc([]netip.Prefix{env.V4Network, env.V6Network}, func(p netip.Prefix) bool { return !p.IsValid() })
}
