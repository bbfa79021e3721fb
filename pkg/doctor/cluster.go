package doctor

import (
	"fmt"
	"slices"
	"time"
)

func clusterChecks() []Check {
	return []Check{
		{"FL401", "the cluster has given this node a podCIDR", anySystem, podCIDR},
		{"FL402", "the node's clock agrees with the store's", anySystem, clock},
		{"FL403", "VNI and port are such that Linux and Windows nodes can share them", linux, mixed},
		{"FL404", "no HTTP proxy stands between this node and the API server", anySystem, noProxy},
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

// The bounds are HNS's: VNIs below 4096 are for VLANs there, and its VXLAN port is 4789 but for the latest versions; and
// kube-proxy's, for which a VNI has 16 bits.
const (
	leastWindowsVNI = 4096
	mostWindowsVNI  = 1<<16 - 1
	windowsPort     = 4789
)

// mixed finds what works among Linux nodes and fails for each Windows node that joins: the defaults of the two differ.
// The daemon knows more than the devices show, and of Windows nodes in etcd nobody else knows.
func mixed(s Snapshot) Finding {
	fix := fmt.Sprintf("Set Backend.VNI to %d, Backend.Port to %d and DirectRouting to false in the one network configuration of all nodes.", leastWindowsVNI, windowsPort)
	tunnels, nodes, r := s.tunnels(), s.Cluster.WindowsNodes, s.report()
	told := r != nil && r.PeersKnown
	switch {
	case told && r.Advice != "" && slices.ContainsFunc(tunnels, func(d Device) bool { return d.VNI < leastWindowsVNI }):
		return fail(fix, "%s", oneLine(r.Advice))
	case told && r.Advice != "":
		return warn(fix, "%s", oneLine(r.Advice))
	case !nodes.Known && told:
		return ok("the daemon knows no Windows node that this node's configuration keeps apart")
	case !nodes.Known:
		return nodes.missing()
	case len(nodes.Value) == 0:
		return ok("the cluster has no Windows nodes")
	case !s.Linux.Devices.Known:
		return s.Linux.Devices.missing()
	case len(tunnels) == 0:
		return skip("there is no VXLAN device of ours")
	}
	for _, d := range tunnels {
		if d.VNI < leastWindowsVNI || d.Port != windowsPort {
			return fail(fix, "%s has VNI %d and port %d, and the cluster has Windows nodes (%s), which need VNI %d or more and port %d",
				d.Name, d.VNI, d.Port, several(nodes.Value), leastWindowsVNI, windowsPort)
		}
	}
	return ok("VNI %d, port %d", tunnels[0].VNI, tunnels[0].Port)
}

// noProxy matters where variables for the whole machine send every program to a proxy, as a Windows node behind one
// needs for images: one that does not know the cluster's addresses answers for the API server.
func noProxy(s Snapshot) Finding {
	c := s.Cluster
	switch {
	case !c.Proxy.Known:
		return c.Proxy.missing()
	case c.Proxy.Value == "":
		return ok("there is none")
	case c.Unheard != "":
		return fail("Put the API server's address, and the pod and service networks, into NO_PROXY for the whole machine, and start flanneld and kubelet anew.",
			"requests go to %s, and the API server does not answer: %s", c.Proxy.Value, oneLine(c.Unheard))
	case !c.PodCIDRs.Known:
		return skip("requests go to %s; whether the API server answers there is not known: %s", c.Proxy.Value, oneLine(c.PodCIDRs.WhyNot))
	}
	return ok("requests go to %s, and the API server answers", c.Proxy.Value)
}
