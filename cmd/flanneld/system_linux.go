package main

import (
	"context"
	"io"
	"log/slog"

	"flannel/pkg/daemon/reach"
	"flannel/pkg/dataplane"
	"flannel/pkg/firewall"
	"flannel/pkg/linux"
	linuxfirewall "flannel/pkg/linux/firewall"
	"flannel/pkg/linux/sandbox"
	linuxunderlay "flannel/pkg/linux/underlay"
	"flannel/pkg/probe/path"
)

// This file has what flanneld's commands choose for Linux, and system_windows.go the same
// for Windows. Longer parts have files of their own, such as memory_linux.go.

// readUnderlay and watchUnderlay are for the choice of the interface to the other nodes.
var readUnderlay, watchUnderlay = linuxunderlay.Read, linuxunderlay.Watch

// confine forbids this process to use the network for good.
var confine = sandbox.NoNetwork

// cleanupSystem is for the commands cleanup and handback.
var cleanupSystem = system{Driver: linux.Cleanup, Handback: linux.Handback, Firewall: linuxfirewall.Cleanup}

// openDriver opens the kernel's tables and starts to watch them. The caller closes it.
func openDriver(o dataplane.Options) (dataplane.Dataplane, error) { return linux.New(o) }

// openFirewall returns the writer of the firewall's rules. The caller closes it.
func openFirewall(o firewall.Options) (rulesWriter, error) { return linuxfirewall.New(o) }

// openProbes returns the socket by which peers are probed. The caller closes it.
func openProbes() (probeConn, error) { return path.OpenSocket(reach.Magic) }

// prepareSwitch does nothing: the host's address moves on Windows only.
func prepareSwitch(context.Context, dataplane.Options, dataplane.Device, func(error)) (dataplane.Prepared, error) {
	return dataplane.Prepared{}, nil
}

// keepVIP does nothing: kube-proxy needs a source VIP on Windows only.
func keepVIP(context.Context, string, string, *slog.Logger) error { return nil }

// systemPath returns the path of a system file, given as on Linux.
func systemPath(path string) string { return path }

// enableSequences does nothing: terminals interpret control sequences.
func enableSequences(io.Writer) (restore func(), err error) { return func() {}, nil }
