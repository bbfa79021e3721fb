package doctor

import (
	"fmt"
	"time"
)

func clusterChecks() []Check {
	return []Check{
		{"FL401", "the cluster has given this node a podCIDR", anySystem, podCIDR},
		{"FL402", "the node's clock agrees with the store's", anySystem, clock},
		{"FL403", "VNI and port are such that Linux and Windows nodes can share them", linux, mixed},
	}
}

// podCIDR is what a kubeadm cluster lacks that was made without a pod network: nothing else ever gives the node one.
func podCIDR(s Snapshot) Finding {
	if !s.Cluster.PodCIDRs.Known {
		return s.Cluster.PodCIDRs.missing()
	}
	if len(s.Cluster.PodCIDRs.Value) == 0 {
		return fail("Start kube-controller-manager with --allocate-node-cidrs and --cluster-cidr (kubeadm: podSubnet), or patch spec.podCIDR of the Node.",
			"its Node has no podCIDR")
	}
	return ok("%s", several(s.Cluster.PodCIDRs.Value))
}

// A clock that is off by minutes breaks what is signed with a time: tokens at once, certificates around their renewal.
// Leases themselves are timed by the store alone.
const (
	clockNoise = 10 * time.Second
	clockOff   = 5 * time.Minute
)

func clock(s Snapshot) Finding {
	if !s.Cluster.Ahead.Known {
		return s.Cluster.Ahead.missing()
	}
	const fix = "Run an NTP client (chrony, systemd-timesyncd, w32time) on this node and on the store's."
	ahead := s.Cluster.Ahead.Value
	word := "behind"
	if ahead < 0 {
		word = "ahead of"
	}
	switch off := ahead.Abs(); {
	case off >= clockOff:
		return fail(fix, "this node's clock is %s %s the store's: tokens and certificates fail", off.Round(time.Second), word)
	case off >= clockNoise:
		return warn(fix, "this node's clock is %s %s the store's", off.Round(time.Second), word)
	}
	return ok("within %s", clockNoise)
}

// The bounds are HNS's: VNIs below 4096 are for VLANs there, and its VXLAN port is 4789 but for the latest versions.
const (
	leastWindowsVNI = 4096
	windowsPort     = 4789
)

// mixed finds what works among Linux nodes and fails for each Windows node that joins: the defaults of the two differ.
func mixed(s Snapshot) Finding {
	tunnels := s.tunnels()
	switch {
	case !s.Cluster.WindowsNodes.Known:
		return s.Cluster.WindowsNodes.missing()
	case len(s.Cluster.WindowsNodes.Value) == 0:
		return ok("the cluster has no Windows nodes")
	case !s.Linux.Devices.Known:
		return s.Linux.Devices.missing()
	case len(tunnels) == 0:
		return skip("there is no VXLAN device of ours")
	}
	for _, d := range tunnels {
		if d.VNI < leastWindowsVNI || d.Port != windowsPort {
			return fail(fmt.Sprintf("Set Backend.VNI to %d and Backend.Port to %d in the one network configuration of all nodes.", leastWindowsVNI, windowsPort),
				"%s has VNI %d and port %d, and the cluster has Windows nodes (%s), which need VNI %d or more and port %d",
				d.Name, d.VNI, d.Port, several(s.Cluster.WindowsNodes.Value), leastWindowsVNI, windowsPort)
		}
	}
	return ok("VNI %d, port %d", tunnels[0].VNI, tunnels[0].Port)
}
