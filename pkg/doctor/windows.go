package doctor

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"flannel/pkg/status"
	"flannel/pkg/underlay"
)

func windowsChecks() []Check {
	return []Check{
		{"FL501", "the Host Network Service runs and can do what the network needs", windows, hnsFit},
		{"FL502", "the HNS network is there in the shape that the lease asks for", windows, hnsNetwork},
		{"FL503", "the network has a management address that the other nodes can reach", windows, managementIP},
		{"FL504", "the adapter kept its DNS servers and the one default route", windows, adapterKept},
		{"FL505", "VNI and port are such that HNS takes them", windows, windowsVNI},
		{"FL506", "HNS leads to every peer that is in step, and to no other", windows, remotes},
		{"FL507", "packets to pods are forwarded (host-gw)", windows, windowsForwards},
		{"FL508", "kube-proxy knows its own name (--hostname-override)", windows, hostnameOverride},
		{"FL509", "kube-proxy has a source VIP of this node's subnet (overlay)", windows, sourceVIP},
		{"FL510", "kube-proxy asks for no DSR that HNS cannot do", windows, dsr},
		{"FL511", "pods' packets within the cluster are not masqueraded", windows, natSpares},
		{"FL512", "the hypervisor lets the pods' MAC addresses pass", windows, macSpoofing},
		{"FL513", "kubelet, kube-proxy and a container runtime run", windows, programs},
		{"FL514", "nothing that earlier scripts left is in the way", windows, nothingLeft},
		{"FL515", "the CNI configuration goes with the HNS network", windows, confFits},
		{"FL516", "pods are told a DNS server", windows, podDNS},
		{"FL517", "the adapter has back what its switch took", windows, allBack},
		{"FL518", "kube-proxy works on our network (--network-name)", windows, proxyNetwork},
		{"FL519", "routes lead to every peer that is in step, and to no other (host-gw)", windows, peerRoutes},
	}
}

// hnsFit names the version that lacks something, since HNS itself only refuses, with a code.
func hnsFit(s Snapshot) Finding {
	if !s.Windows.HNS.Known {
		return s.Windows.HNS.missing()
	}
	h := s.Windows.HNS.Value
	_, overlay, found := s.hns()
	_, v6 := s.families()
	version := fmt.Sprintf("HNS %d.%d", h.Major, h.Minor)
	switch {
	case h.Problem != "":
		return fail("Restart-Service hns; if there is no such service, install the feature Containers.", "HNS does not answer as it should: %s", h.Problem)
	case overlay && !h.atLeast(9, 2):
		return warn("Install the updates: Windows Server 2019 needs KB4489899 or later.",
			"%s is older than 9.2: each peer is a remote endpoint instead of a policy, and host and pods of one node do not reach each other", version)
	case !found && !h.atLeast(9, 2):
		return warn("Install the updates: Windows Server 2019 needs KB4489899 or later. Or use host-gw.",
			"%s is older than 9.2, without which there is no kube-proxy on an overlay: flanneld prepare makes none", version)
	case v6 && overlay:
		return warn("Use host-gw where pods need IPv6.", "Windows has no overlay for IPv6: pods have IPv4 alone")
	case v6 && !s.hnsHas6(overlay):
		return warn("Use Windows Server 2022 or later.", "%s has no IPv6 beside IPv4: pods have IPv4 alone", version)
	}
	return ok("%s", version)
}

// hnsNetwork compares shape and subnet, for HNS can change neither of a network that lives: after a rejoin the old one
// may stand there.
func hnsNetwork(s Snapshot) Finding {
	network, overlay, found := s.hns()
	n := s.node()
	switch {
	case !s.Windows.Networks.Known:
		return s.Windows.Networks.missing()
	case len(s.subnets()) == 0:
		return skip("this node has no subnet yet, or it is not known")
	}
	want := hnsBridge
	if overlay {
		want = hnsOverlay
	}
	const fix = "Restart flanneld: it makes the network anew and says what differs. If it cannot, give the adapter by --iface; flanneld status says what it waits for."
	switch {
	case !found && n == nil:
		return fail(fix, "there is no network like flannel's among the %d of HNS, and the daemon has no lease or does not answer", len(s.Windows.Networks.Value))
	case !found:
		return fail(fix, "there is no HNS network of ours among %d", len(s.Windows.Networks.Value))
	case !strings.EqualFold(network.Type, want):
		return fail(fix, "%s is of type %s, not %s", network.Name, network.Type, want)
	case strings.HasPrefix(network.Adapter, "vEthernet"):
		return fail(fix, "%s is bound to %s, which is no physical adapter", network.Name, network.Adapter)
	case !s.fits(network):
		return fail(fix, "%s has subnet %s, and the lease %s", network.Name, or(join(network.Subnets...), "none"), join(s.subnets()...))
	}
	return ok("%s, %s of %s on %s", network.Name, network.Type, join(network.Subnets...), network.Adapter)
}

// managementIP finds an adapter that lost its address to the vSwitch: it comes back late, by DHCP instead of static, or
// as one that Windows made up.
func managementIP(s Snapshot) Finding {
	if !s.Windows.Networks.Known {
		return s.Windows.Networks.missing()
	}
	network, _, found := s.hns()
	ip := network.ManagementIP
	const fix = "Give the adapter (vEthernet) its static address again, or see why DHCP gives none; flanneld waits for it and goes on by itself."
	switch {
	case !found:
		return skip("there is no HNS network of ours")
	case !ip.IsValid():
		return fail(fix, "%s has none yet", network.Name)
	case ip.IsLinkLocalUnicast():
		return fail(fix, "%s has %s, which Windows takes when it gets no other", network.Name, ip)
	}
	for _, in := range s.Interfaces.Value.Interfaces {
		if slices.ContainsFunc(in.Addrs, func(a underlay.Addr) bool { return a.IP == ip }) {
			return ok("%s on %s", ip, in.Name)
		}
	}
	return fail(fix, "no adapter has %s", ip)
}

// adapterKept finds what else the vSwitch takes from an adapter: its DNS servers, and routes. With two default routes,
// Windows and flannel may choose different ones.
func adapterKept(s Snapshot) Finding {
	host, known := s.host()
	switch {
	case !s.Windows.Adapters.Known:
		return s.Windows.Adapters.missing()
	case !s.Interfaces.Known:
		return s.Interfaces.missing()
	case !known:
		return skip("which adapter has the host's address is not known: the daemon has no lease or does not answer")
	}
	const fix = "Set on the vEthernet adapter what the physical one had; flanneld prepare takes the outage once and keeps it."
	defaults := slices.DeleteFunc(slices.Clone(s.Interfaces.Value.Defaults), func(d underlay.Default) bool { return d.V6 || s.ofPods(d.Index) })
	switch {
	case len(host.DNS) == 0:
		return warn(fix, "%s has no DNS server", host.Name)
	case len(defaults) == 0:
		return warn(fix, "there is no IPv4 default route")
	case len(defaults) > 1:
		return warn("Remove the one that is not meant, or give it a higher metric.", "there are %d IPv4 default routes", len(defaults))
	}
	return ok("DNS servers and one default route")
}

// windowsVNI repeats what the configuration is checked for, since a flannel on this node may have made the network.
func windowsVNI(s Snapshot) Finding {
	network, overlay, found := s.hns()
	switch {
	case !s.Windows.Networks.Known:
		return s.Windows.Networks.missing()
	case !found:
		return skip("there is no HNS network of ours")
	case !overlay:
		return skip("the backend is no overlay")
	case network.VNI < leastWindowsVNI:
		return fail(fmt.Sprintf("Set Backend.VNI to %d (and Port to %d) in the one network configuration of all nodes.", leastWindowsVNI, windowsPort), "the VNI is %d", network.VNI)
	}
	port := cmp.Or(network.Port, windowsPort)
	if h := s.Windows.HNS; port != windowsPort && h.Known && h.Value.Problem == "" && !h.Value.atLeast(10, 3) {
		return fail(fmt.Sprintf("Set Backend.Port to %d in the one network configuration of all nodes, or update Windows.", windowsPort),
			"the port is %d, and HNS %d.%d knows only %d", port, h.Value.Major, h.Value.Minor, windowsPort)
	}
	if network.VNI > mostWindowsVNI {
		return warn(fmt.Sprintf("Set Backend.VNI to %d in the one network configuration of all nodes.", leastWindowsVNI),
			"the VNI is %d, and kube-proxy reads none above %d: there are no Services", network.VNI, mostWindowsVNI)
	}
	return ok("VNI %d, port %d", network.VNI, port)
}

// remotes counts both ways: a policy too many sends packets, and kube-proxy, to a node that is gone.
func remotes(s Snapshot) Finding {
	network, overlay, found := s.hns()
	r := s.report()
	switch {
	case !s.Windows.Networks.Known:
		return s.Windows.Networks.missing()
	case r == nil || !r.PeersKnown:
		return skip("the daemon does not know the peers, or does not answer")
	case !overlay || !found:
		return skip("there is no overlay network of ours")
	}
	if gone, extra := s.compareWays(network.Remote); gone+extra > 0 {
		return fail("flanneld mends it within minutes; if not, restart it and look at its log for codes of HNS (0x803b…).", "%d policies are missing, %d lead to nodes that are gone", gone, extra)
	}
	return ok("%d policies", len(network.Remote))
}

// compareWays counts the peers in step that nothing leads to, and the ways that lead to no peer. Of a peer that is behind,
// the way may be there or not.
func (s Snapshot) compareWays(all []HNSRemote) (gone, extra int) {
	have := map[HNSRemote]bool{}
	for _, one := range all {
		have[one] = true
	}
	for _, p := range s.report().Peers {
		for i := range min(len(p.Subnets), len(p.PublicIPs)) {
			key := HNSRemote{p.Subnets[i], p.PublicIPs[i]}
			if p.State == status.InStep && !have[key] {
				gone++
			}
			if p.State == status.InStep || p.State == status.Behind {
				delete(have, key)
			}
		}
	}
	return gone, len(have)
}

// peerRoutes is remotes for host-gw: a route that is left leads what is for a moved subnet to the node that had it.
func peerRoutes(s Snapshot) Finding {
	_, overlay, found := s.hns()
	r := s.report()
	switch {
	case !s.Windows.Routes.Known:
		return s.Windows.Routes.missing()
	case r == nil || !r.PeersKnown:
		return skip("the daemon does not know the peers, or does not answer")
	case overlay || !found:
		return skip("there is no network of host-gw")
	}
	pods := s.podNetworks()
	ways := slices.DeleteFunc(slices.Clone(s.Windows.Routes.Value), func(w HNSRemote) bool {
		return !slices.ContainsFunc(pods, func(p netip.Prefix) bool { return p.Bits() < w.Subnet.Bits() && p.Contains(w.Subnet.Addr()) })
	})
	if gone, extra := s.compareWays(ways); gone+extra > 0 {
		return fail("flanneld mends it within seconds; if not, flanneld status says why. Remove a persistent route of another hand's (route print; route delete).",
			"%d routes are missing, %d lead to nodes that are gone", gone, extra)
	}
	return ok("%d routes", len(ways))
}

// windowsForwards looks at both interfaces that a packet passes; the policies of a domain reset them.
func windowsForwards(s Snapshot) Finding {
	network, overlay, found := s.hns()
	host, known := s.host()
	v4, v6 := s.families()
	off := func(f Forwarding) bool { return v4 && !f.V4 || v6 && !f.V6 }
	const fix = "Restart flanneld: it switches forwarding on; see whether a policy of the domain switches it off."
	switch {
	case !s.Windows.Networks.Known:
		return s.Windows.Networks.missing()
	case !s.Windows.Adapters.Known:
		return s.Windows.Adapters.missing()
	case overlay || !found:
		return skip("there is no network of host-gw")
	case network.Endpoint == nil:
		return fail("Restart flanneld: it makes the endpoint.", "%s has no endpoint of the host", network.Name)
	case off(network.Endpoint.Forwarding):
		return fail(fix, "forwarding is off on the host's endpoint of %s", network.Name)
	case !known:
		return skip("which adapter has the host's address is not known: the daemon has no lease or does not answer")
	case off(host.Forwarding):
		return fail(fix, "forwarding is off on %s", host.Name)
	}
	return ok("forwarding is on")
}

// macSpoofing is here so that its code leads people to the answer, though it cannot be judged from inside.
func macSpoofing(s Snapshot) Finding {
	of := s.Machine.Value.String()
	if of != "" {
		of = ", and this machine is of " + of
	}
	return skip("only the hypervisor's host knows%s: in a virtual machine, switch MAC address spoofing on for its adapter (Hyper-V: Set-VMNetworkAdapter -MacAddressSpoofing On; VMware: forged transmits, promiscuous mode)", of)
}
