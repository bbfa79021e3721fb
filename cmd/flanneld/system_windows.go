// This file has what commands and the daemon use of Windows; system_linux.go has the same
// names.

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"

	"flannel/pkg/dataplane"
	"flannel/pkg/firewall"
	"flannel/pkg/windows"
	"flannel/pkg/windows/node"
)

// readUnderlay and watchUnderlay are for the choice of the interface to the other nodes.
var readUnderlay, watchUnderlay = windows.ReadUnderlay, windows.WatchUnderlay

// confine is nil: a process cannot give up the use of the network. install-cni, which alone
// would call it, checks that.
var confine func() error

// cleanupSystem is for the commands cleanup, and handback, which leaves a running network to
// flannel. The firewall has one rule of flanneld, that of the command prepare.
var cleanupSystem = system{
	SourceVIP: releaseVIP,
	Driver:    windows.Cleanup,
	// flannel adopts flanneld's HNS network and its policies as they are.
	Handback: func(context.Context, dataplane.Options, dataplane.State, bool) ([]string, error) {
		return nil, errors.New("there is nothing to hand back on this system: flannel adopts what flanneld made")
	},
	Firewall: func(ctx context.Context, o firewall.Options, dryRun bool) ([]string, error) {
		return node.RemoveFirewallRule(ctx, o.Log, dryRun), nil
	},
}

// releaseVIP releases kube-proxy's source VIP. The commands have no flag for host-local's
// dataDir, so that the VIP is looked for in the usual one. Beside the subnet file is the file
// with the reserved VIP. What OpenVIP opens ends with the command.
func releaseVIP(ctx context.Context, subnetFile string, log *slog.Logger, dryRun bool) ([]string, error) {
	k, err := node.OpenVIP(subnetFile, usualDataDir(), log)
	if err != nil {
		return nil, err
	}
	removed, err := k.Release(ctx, dryRun)
	if err != nil {
		err = fmt.Errorf("release kube-proxy's source VIP: %w", err)
	}
	return removed, err
}

// keepVIP keeps kube-proxy's source VIP until its context ends.
var keepVIP = node.KeepVIP

// openDriver opens HNS and the IP stack and starts to watch them. The caller closes it.
func openDriver(o dataplane.Options) (dataplane.Dataplane, error) { return windows.Open(o) }

// noRules is the writer of the firewall's rules on Windows, where HNS masquerades.
type noRules struct{}

// openFirewall returns a writer that does nothing.
func openFirewall(firewall.Options) (rulesWriter, error) { return noRules{}, nil }

// Apply implements daemon.Firewall.
func (noRules) Apply(context.Context, firewall.Config) (int, error) { return 0, nil }

// Changes never receives.
func (noRules) Changes() <-chan struct{} { return nil }

// Check finds no change.
func (noRules) Check() (changed bool) { return false }

func (noRules) Close() error { return nil }

// openProbes returns errors.ErrUnsupported: the hosts have no address in the pod network, so
// that peers cannot be probed.
func openProbes() (probeConn, error) { return nil, errors.ErrUnsupported }

// prepareSwitch is for the command prepare.
var prepareSwitch = windows.Prepare

// daemonBeside returns nil: it looks for no daemons. A flanneld with the same subnet file holds
// the lock of that file, which the command takes before. The user has to stop any other
// flanneld and flannel, as the help of cleanup says.
func (c *call) daemonBeside() error { return nil }

// releaseProgram does nothing: Windows trims the working sets of processes itself.
func releaseProgram() {}

// systemPath converts the Linux path of a system file. The file is on drive C:,
// where the CNI plugin looks for it, even if flanneld was started from another
// drive.
func systemPath(path string) string { return "C:" + filepath.FromSlash(path) }
