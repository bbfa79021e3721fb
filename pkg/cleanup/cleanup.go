// Package cleanup takes from this node what flanneld or flannel put there, or gives it the form that flannel can go on with.
package cleanup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"runtime"
	"slices"

	"flannel/pkg/dataplane/system"
	"flannel/pkg/firewall"
	"flannel/pkg/instance"
	"flannel/pkg/winnode"
	"flannel/subnet"
)

// Node is the node as the flanneld with the subnet file uses it.
type Node struct {
	SubnetFile string
	DataDir    string // host-local's, of Windows
	Log        *slog.Logger
}

// Remove removes all that flanneld, or flannel, put into this node's kernel or HNS, and nothing else: see the ownership
// table in Documentation/architecture.md. The subnet file and the lease stay. It returns what it removed, or would.
func (n Node) Remove(ctx context.Context, dryRun bool) (removed []string, err error) {
	name := instance.Of(n.SubnetFile)
	fromVIP, err1 := n.releaseVIP(ctx, dryRun) // while its network is there
	fromSystem, err2 := system.Cleanup(ctx, system.Options{Log: n.Log, Instance: name, StateDir: filepath.Dir(n.SubnetFile)}, n.networks(), dryRun)
	fromFirewall, err3 := firewall.Cleanup(ctx, firewall.Options{Log: n.Log, Instance: name}, dryRun)
	return slices.Concat(fromVIP, fromSystem, fromFirewall), errors.Join(err1, err2, err3)
}

// Handback gives flanneld's routes the form that flannel gives them. It returns what it did, or would do.
func (n Node) Handback(ctx context.Context, dryRun bool) (done []string, err error) {
	return system.Handback(ctx, system.Options{Log: n.Log, Instance: instance.Of(n.SubnetFile)}, n.networks(), dryRun)
}

// networks reads the pod networks from the subnet file; nil if they are not known.
func (n Node) networks() []netip.Prefix {
	env, err := subnet.ReadEnv(n.SubnetFile)
	switch {
	case err != nil && instance.Of(n.SubnetFile) != "":
		n.Log.Warn("could not read the pod network, so devices and routes, which may be those of another flanneld, stay", "error", err)
	case err != nil:
		n.Log.Warn("could not read the pod network, so this takes in what every flanneld on this host made, and leaves the routes that a flannel made", "error", err)
	}
	return slices.DeleteFunc([]netip.Prefix{env.V4Network, env.V6Network}, func(p netip.Prefix) bool { return !p.IsValid() })
}

// releaseVIP takes away kube-proxy's source VIP on Windows.
func (n Node) releaseVIP(ctx context.Context, dryRun bool) (removed []string, err error) {
	if runtime.GOOS != "windows" {
		return nil, nil
	}
	k, err := winnode.OpenVIP(n.SubnetFile, n.DataDir, n.Log)
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
