package doctor

import (
	"fmt"
	"slices"
	"time"
)

// clusterChecks returns the checks of the node in its cluster and of the store.
// The columns are those of daemonChecks.
func clusterChecks() []Check {
	return []Check{
		{"FL401", "the Node has a podCIDR",
			"the Node has no podCIDR", anySystem, needs{podCIDRsKnown}, podCIDR},
		{"FL402", "the node's clock agrees with the store's",
			"the node's clock disagrees with the store's", anySystem, needs{clockKnown}, clock},
		{"FL403", "Linux and Windows nodes can use the VNI and the port",
			"Windows nodes cannot use the VNI, the port or the routing of this network", linux, nil, mixed},
		{"FL404", "no HTTP proxy intercepts requests to the API server",
			"an HTTP proxy intercepts requests to the API server", anySystem, needs{proxyKnown}, noProxy},
	}
}

// podCIDR finds a cluster that assigns no podCIDRs, for example because kubeadm
// created it without a podSubnet.
func podCIDR(s Snapshot) Finding {
	if len(s.Cluster.PodCIDRs.Value) == 0 {
		return fail("Start kube-controller-manager with --allocate-node-cidrs and --cluster-cidr (kubeadm: "+
			"podSubnet), or patch spec.podCIDR of the Node.",
			"the Node has no podCIDR")
	}
	return ok("%s", several(s.Cluster.PodCIDRs.Value))
}

// Limits for the difference between this node's clock and the store's. With a
// difference of minutes, tokens are invalid, and certificates are around their
// renewal. It does not affect leases: only the store measures their time.
const (
	clockWarn = 10 * time.Second
	clockFail = 5 * time.Minute
)

// clock finds a clock that differs too much.
func clock(s Snapshot) Finding {
	const fix = "Run an NTP client (chrony, systemd-timesyncd, w32time) on this node and on the store's."
	ahead := s.Cluster.Ahead.Value // the store's time minus this node's
	relation := "behind"
	if ahead < 0 {
		relation = "ahead of"
	}
	switch off := ahead.Abs(); {
	case off >= clockFail:
		return fail(fix, "this node's clock is %s %s the store's: tokens and certificates are invalid",
			off.Round(time.Second), relation)
	case off >= clockWarn:
		return warn(fix, "this node's clock is %s %s the store's", off.Round(time.Second), relation)
	}
	return ok("within %s", clockWarn)
}

// Limits of Windows nodes: HNS uses VNIs below 4096 for VLANs, and before
// version 10.3 supports no other VXLAN port than 4789; kube-proxy reads a VNI
// as a number of 16 bits.
const (
	minWindowsVNI = 4096
	maxWindowsVNI = 1<<16 - 1
	windowsPort   = 4789
)

// mixed finds a VNI or a port with which Windows nodes cannot join: the
// defaults on Linux are such. The daemon's Advice says what to change so that
// Linux and Windows nodes reach each other. If there is one, it is used,
// because only the daemon knows whether there are Windows nodes if the leases
// are in etcd.
func mixed(s Snapshot) Finding {
	fix := fmt.Sprintf("With vxlan, set Backend.VNI to %d, Backend.Port to %d and DirectRouting to false in the network "+
		"configuration.",
		minWindowsVNI, windowsPort)
	tunnels, nodes, r := s.vxlans(), s.Cluster.WindowsNodes, s.report()
	peersKnown := r != nil && r.PeersKnown
	switch {
	case peersKnown && r.Advice != "":
		if slices.ContainsFunc(tunnels, func(d Device) bool { return d.VNI < minWindowsVNI }) {
			return fail(fix, "%s", oneLine(r.Advice))
		}
		return warn(fix, "%s", oneLine(r.Advice))
	case !nodes.Known && peersKnown:
		return ok("the daemon knows no Windows node that cannot use this node's configuration")
	case !nodes.Known:
		return nodes.missing()
	case len(nodes.Value) == 0:
		return ok("the cluster has no Windows nodes")
	case !s.Linux.Devices.Known:
		return devicesKnown(s) // the Finding that says why
	case len(tunnels) == 0:
		return vxlanExists(s)
	}
	for _, d := range tunnels {
		if d.VNI < minWindowsVNI || d.Port != windowsPort {
			return fail(fix,
				"%s has VNI %d and port %d, but the cluster has Windows nodes (%s), which need a VNI of at least "+
					"%d and port %d",
				d.Name, d.VNI, d.Port, several(nodes.Value), minWindowsVNI, windowsPort)
		}
	}
	return ok("VNI %d, port %d", tunnels[0].VNI, tunnels[0].Port)
}

// noProxy finds a proxy that is asked for the API server and cannot reach it.
// This happens where HTTPS_PROXY is set for all programs of a machine, which
// Windows nodes behind a proxy need for pulling images, and NO_PROXY is
// incomplete.
func noProxy(s Snapshot) Finding {
	c := s.Cluster
	switch {
	case c.Proxy.Value == "":
		return ok("no proxy is used")
	case c.Unreachable != "":
		return fail("Put the API server's address, and the pod and service networks, into NO_PROXY for the whole "+
			"machine, and restart flanneld and kubelet.",
			"requests go to %s, but the API server does not answer: %s", c.Proxy.Value, oneLine(c.Unreachable))
	case !c.PodCIDRs.Known: // only the API server has them
		return undecidable("requests go to %s; whether the API server answers is not known: %s", c.Proxy.Value,
			oneLine(c.PodCIDRs.WhyNot))
	}
	return ok("requests go to %s, and the API server answers", c.Proxy.Value)
}
