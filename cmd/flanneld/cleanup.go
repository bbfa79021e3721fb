package main

// A cleaner removes what flanneld or flannel created on this node, or converts
// it so that flannel can take over.

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"runtime"
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
	// Driver removes the devices and routes, or the HNS networks and routes. s has the pod
	// networks and this node's subnets; none: they are not known (see cleaner.left).
	Driver func(ctx context.Context, o dataplane.Options, s dataplane.State, dryRun bool) ([]string, error)
	// Handback converts routes to the form of flannel's.
	Handback func(ctx context.Context, o dataplane.Options, s dataplane.State, dryRun bool) ([]string, error)
	// Firewall removes the rules in the firewall.
	Firewall func(ctx context.Context, o firewall.Options, dryRun bool) ([]string, error)
}

// Remove removes everything that flanneld or flannel created in this node's kernel or
// HNS, and nothing else (see the ownership table in Documentation/architecture.md).
// The subnet file and the lease stay. Routes of flannel through the underlay stay if their
// length is not that of a subnet in the subnet file. It returns a description of each object
// that it removed, or with dryRun would remove. After an error of left, it removes nothing.
func (n cleaner) Remove(ctx context.Context, dryRun bool) (removed []string, err error) {
	left, err := n.left()
	if err != nil {
		return nil, err
	}
	var fromVIP []string
	var err1 error
	if n.System.SourceVIP != nil {
		fromVIP, err1 = n.System.SourceVIP(ctx, n.SubnetFile, n.Log, dryRun)
	}
	fromSystem, err2 := n.System.Driver(ctx, n.options(), left, dryRun)
	fromFirewall, err3 := n.System.Firewall(ctx, firewall.Options{Log: n.Log, Instance: instanceOf(n.SubnetFile)}, dryRun)
	return slices.Concat(fromVIP, fromSystem, fromFirewall), errors.Join(err1, err2, err3)
}

// Handback converts flanneld's routes to the form of flannel's. It returns a
// description of each change that it made, or with dryRun would make.
func (n cleaner) Handback(ctx context.Context, dryRun bool) (done []string, err error) {
	left, err := n.left()
	if err != nil {
		return nil, err
	}
	return n.System.Handback(ctx, n.options(), left, dryRun)
}

// options returns the options of the driver that removes what the daemon left.
func (n cleaner) options() dataplane.Options {
	return dataplane.Options{Log: n.Log, Instance: instanceOf(n.SubnetFile), StateDir: filepath.Dir(n.SubnetFile)}
}

// left returns Networks, Subnets and FormerSubnets of the subnet file, none if there is no file. A file that does not
// tell the networks is an error on Linux: without networks, the driver takes everything that any flanneld made for this
// one's. The driver of Windows only keeps the routes then.
func (n cleaner) left() (s dataplane.State, err error) {
	env, err := subnet.ReadEnv(n.SubnetFile)
	valid := func(prefixes ...netip.Prefix) []netip.Prefix {
		return slices.DeleteFunc(prefixes, func(p netip.Prefix) bool { return !p.IsValid() })
	}
	networks := valid(env.V4Network, env.V6Network)
	if err == nil && len(networks) == 0 && !env.IsZero() {
		err = fmt.Errorf("read %s: %w: no FLANNEL_NETWORK and no FLANNEL_IPV6_NETWORK", n.SubnetFile, subnet.ErrMalformed)
	}
	if err == nil {
		return dataplane.State{Networks: networks, Subnets: valid(env.V4Subnet, env.V6Subnet),
			FormerSubnets: slices.Concat(env.FormerV4, env.FormerV6)}, nil
	}
	if runtime.GOOS == "windows" {
		n.Log.Warn("could not read the pod network, keeping routes", "error", err)
		return s, nil
	}
	advice := "try again"
	if errors.Is(err, subnet.ErrMalformed) {
		advice = "repair " + n.SubnetFile
		if instanceOf(n.SubnetFile) == "" { // without the file, any other instance is refused
			advice += ", or delete it if no other flanneld has a network on this host"
		}
	}
	return s, fmt.Errorf("find the pod network of this flanneld: %w; %s", err, advice)
}
