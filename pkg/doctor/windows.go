package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"flannel/pkg/underlay"
)

// windowsChecks returns the checks of a Windows node. The columns are the fields of Check:
// code, what is right, what is wrong, system, what must be known, and the function below. If
// something that must be known is not, the function is not called (see needs).
//
// HNS is the Host Network Service. It makes a network with a virtual switch (vSwitch) on a
// physical adapter, whose addresses then move to a new vEthernet adapter. s.hns (hns.go)
// returns flanneld's network, whether the backend is vxlan (overlay; else it is host-gw,
// with the type L2Bridge), and whether there is such a network.
func windowsChecks() []Check {
	return []Check{
		{"FL501", "the Host Network Service runs and supports what the network needs",
			"the Host Network Service does not run, or lacks what the network needs", windows, needs{hnsKnown}, hnsVersion},
		{"FL502", "the HNS network exists and matches the lease",
			"the HNS network is missing, or does not match the lease", windows, needs{networksKnown, subnetKnown}, hnsNetwork},
		{"FL503", "the HNS network has a management address that the other nodes can reach",
			"the HNS network has no management address that the other nodes can reach", windows, needs{networksKnown, hnsNetworkExists}, managementIP},
		{"FL504", "the host's adapter has DNS servers and one default route",
			"the host's adapter has no DNS servers, or not exactly one default route", windows, needs{adaptersKnown, interfacesKnown, hostAdapterKnown}, adapterSettings},
		{"FL505", "HNS and kube-proxy support the VNI and the port",
			"HNS or kube-proxy does not support the VNI or the port", windows, needs{networksKnown, hnsNetworkExists}, windowsVNI},
		{"FL506", "HNS has a policy for each peer that is up to date, and no stale ones",
			"HNS has no policy for some peers that are up to date, or stale ones", windows, needs{networksKnown, peersKnown, overlayExists}, peerPolicies},
		{"FL507", "packets to pods are forwarded (host-gw)",
			"packets to pods are not forwarded (host-gw)", windows, needs{networksKnown, adaptersKnown, hostGWExists}, windowsForwards},
		{"FL508", "kube-proxy knows the name of its Node (--hostname-override)",
			"kube-proxy does not know the name of its Node (--hostname-override)", windows, needs{kubeProxyRuns}, hostnameOverride},
		{"FL509", "kube-proxy has a source VIP in this node's subnet (overlay)",
			"kube-proxy has no source VIP in this node's subnet (overlay)", windows, needs{kubeProxyRuns, networksKnown, hnsNetworkExists}, sourceVIP},
		{"FL510", "kube-proxy uses DSR only if HNS supports it, and the CNI configuration only if kube-proxy does",
			"kube-proxy uses DSR, which HNS does not support, or the CNI configuration alone uses it", windows, needs{kubeProxyRuns, hnsKnown}, dsr},
		{"FL511", "pods' packets within the cluster are not masqueraded",
			"pods' packets within the cluster are masqueraded, or those to the outside are not", windows, needs{cniKnown, confCallsFlannel, podNetworksKnown}, natExcepts},
		{"FL512", "the hypervisor accepts packets with the pods' MAC addresses",
			"the hypervisor drops packets with the pods' MAC addresses", windows, nil, macSpoofing},
		{"FL513", "kubelet, kube-proxy and a container runtime run",
			"kubelet, kube-proxy or the container runtime does not run", windows, needs{programsKnown}, programs},
		{"FL514", "there are no conflicting files or networks of earlier scripts",
			"there are conflicting files or networks of earlier scripts", windows, nil, noLeftovers},
		{"FL515", "the CNI configuration matches the HNS network",
			"the CNI configuration does not match the HNS network", windows, needs{cniKnown, networksKnown, confCallsFlannel, hnsNetworkExists}, confMatches},
		{"FL516", "pods get a DNS server",
			"pods get no DNS server", windows, needs{cniKnown, confCallsFlannel}, podDNS},
		{"FL517", "the adapter has the settings that it had before the vSwitch",
			"the adapter lacks settings that it had before the vSwitch", windows, needs{lostKnown}, settingsRestored},
		{"FL518", "kube-proxy uses flanneld's network (--network-name)",
			"kube-proxy uses another network than flanneld's (--network-name)", windows, needs{kubeProxyRuns, networksKnown, hnsNetworkExists}, proxyNetwork},
		{"FL519", "there is a route to each peer that is up to date, and no stale ones (host-gw)",
			"there is no route to some peers that are up to date, or there are stale ones (host-gw)", windows, needs{routesKnown, peersKnown, hostGWExists}, peerRoutes},
		{"FL520", "the Windows Firewall accepts the packets of the overlay",
			"the Windows Firewall drops the packets of the overlay", windows, needs{networksKnown, overlayExists, firewallKnown}, vxlanPortOpen},
		{"FL521", "HNS lists each network that it has",
			"HNS has a network that it does not list", windows, needs{ghostsKnown}, noGhosts},
		{"FL522", "running pods have their endpoints in HNS",
			"running pods have lost their endpoints in HNS", windows, nil, podsConnected},
		{"FL523", "the node's adapter can have a vSwitch",
			"the node's adapter cannot have a vSwitch", windows, needs{networksKnown, adaptersKnown, interfacesKnown}, adapterTakesSwitch},
		{"FL524", "the host's network has the category that it had before the vSwitch",
			"the host's network lost its category with the vSwitch, and became public", windows, needs{categoryKnown}, categoryRestored},
	}
}

// hnsVersion finds a version of HNS without a feature that the network needs.
// HNS itself only rejects a request with a code. unnamed is the reason why it is not known
// which network is flanneld's (nameKnown); zero: it is known, also that there is none. The
// daemon reports no node (s.node() == nil) if it does not answer, or has no lease.
func hnsVersion(s Snapshot) Finding {
	h := s.Windows.HNS.Value
	_, overlay, found := s.hns()
	v4, v6 := s.families()
	suitsBoth := h.atLeast(9, 2) && v4 && !v6 // HNS has all that overlays and host-gw need
	version, unnamed := fmt.Sprintf("HNS %d.%d", h.Major, h.Minor), nameKnown(s)
	switch {
	case h.Problem != "":
		return fail("Run Restart-Service hns; if there is no such service, install the feature Containers.",
			"HNS does not answer, or with an error: %s", h.Problem)
	case overlay && !h.atLeast(9, 2):
		return warn("Install the updates: Windows Server 2019 needs at least KB4489899.",
			"%s is older than 9.2: flanneld uses remote endpoints instead of policies, and the host and its own "+
				"pods do not reach each other",
			version)
	case s.node() == nil && !found && unnamed.Verdict == "" && !h.atLeast(9, 2): // there is no network yet
		return warn("Install the updates: Windows Server 2019 needs at least KB4489899. Or use host-gw.",
			"%s is older than 9.2, which kube-proxy needs with an overlay: flanneld prepare does not create one",
			version)
	case v6 && overlay:
		return warn("Use host-gw if pods need IPv6.", "overlays of Windows do not support IPv6: pods have only IPv4")
	case v6 && !s.podsHaveIPv6(overlay):
		return warn("Use Windows Server 2022 or later.",
			"%s does not support IPv4 and IPv6 together: pods have only IPv4", version)
	case unnamed.Verdict != "" && !suitsBoth: // whether HNS suffices depends on the kind of a network that is not known
		return unnamed
	}
	return ok("%s", version)
}

// hnsNetwork compares type, adapter and subnets of the HNS network with the
// lease. HNS cannot change them, so that a network of an earlier lease must be
// replaced.
func hnsNetwork(s Snapshot) Finding {
	network, overlay, found := s.hns()
	want := hnsBridge
	if overlay {
		want = hnsOverlay
	}
	const fix = "Restart flanneld: it replaces the network and logs the differences. If it cannot, see in flanneld " +
		"status what it waits for; maybe it needs --iface."
	switch unnamed := nameKnown(s); {
	case unnamed.Verdict != "":
		return unnamed
	case !found:
		return fail(fix, "%s", because(fmt.Sprintf("none of the %d networks of HNS is flannel's", len(s.Windows.Networks.Value)), leaseKnown(s)))
	case !strings.EqualFold(network.Type, want):
		return fail(fix, "%s is of type %s, not %s", network.Name, network.Type, want)
	case strings.HasPrefix(network.Adapter, "vEthernet"):
		return fail(fix, "%s is bound to %s, which is not a physical adapter", network.Name, network.Adapter)
	case !s.hasSubnets(network):
		return fail(fix, "%s has the subnets %s, but this node has %s", network.Name,
			cmp.Or(join(network.Subnets...), "none"), join(s.subnets()...))
	}
	return ok("%s, %s of %s on %s", network.Name, network.Type, join(network.Subnets...), network.Adapter)
}

// managementIP finds a management address that the host no longer has, or that
// is link-local. When a vSwitch is bound to an adapter, the adapter's address
// moves to a vEthernet adapter; a static address may get lost, and DHCP takes
// time.
func managementIP(s Snapshot) Finding {
	network, _, _ := s.hns()
	ip := network.ManagementIP
	const fix = "Set the static address on the vEthernet adapter, or see why DHCP assigns none. flanneld waits for " +
		"it; it need not be restarted."
	switch {
	case !ip.IsValid() && network.Type == hnsBridge: // where HNS may learn it late, and nothing needs it
		for _, in := range s.Interfaces.Value.Interfaces {
			if in.Name == "vEthernet ("+network.Adapter+")" && len(in.Addrs) > 0 {
				return ok("%s has none yet; the host has %s on %s", network.Name, in.Addrs[0].IP, in.Name)
			}
		}
		if missing := interfacesKnown(s); missing.Verdict != "" {
			return missing
		}
		return fail(fix, "%s has none yet, and its adapter has no address", network.Name)
	case !ip.IsValid():
		return fail(fix, "%s has none yet", network.Name)
	case ip.IsLinkLocalUnicast():
		return fail(fix, "%s has %s, which Windows assigns if there is no other address", network.Name, ip)
	case !s.Interfaces.Known:
		return interfacesKnown(s)
	}
	for _, in := range s.Interfaces.Value.Interfaces {
		if slices.ContainsFunc(in.Addrs, func(a underlay.Addr) bool { return a.IP == ip }) {
			return ok("%s on %s", ip, in.Name)
		}
	}
	return fail(fix, "no adapter has %s", ip)
}

// adapterSettings finds DNS servers and a default route that were lost when the
// vSwitch was bound to the adapter, and a second default route: Windows and
// flanneld may choose different ones.
func adapterSettings(s Snapshot) Finding {
	host, _ := s.hostAdapter() // it is there: see the check's needs
	const fix = "Set on the vEthernet adapter what the physical adapter had. flanneld prepare creates the vSwitch " +
		"once and keeps the settings."
	defaults := slices.DeleteFunc(slices.Clone(s.Interfaces.Value.Defaults), func(d underlay.Default) bool {
		return d.V6 || s.isPodInterface(d.Index)
	})
	var seen, fixes []string
	if len(host.DNS) == 0 {
		seen, fixes = append(seen, host.Name+" has no DNS server"), append(fixes, fix)
	}
	switch {
	case len(defaults) == 0:
		seen, fixes = append(seen, "there is no IPv4 default route"), appendOnce(fixes, fix)
	case len(defaults) > 1:
		seen = append(seen, fmt.Sprintf("there are %d IPv4 default routes", len(defaults)))
		fixes = append(fixes, "Remove the wrong default route, or give it a higher metric.")
	}
	if len(seen) > 0 {
		return warn(strings.Join(fixes, " "), "%s", several(seen))
	}
	return ok("%s has both", host.Name)
}

// windowsVNI checks the HNS network. flanneld rejects a configuration with a
// wrong VNI or port, but another program, such as flannel, may have created the
// network.
func windowsVNI(s Snapshot) Finding {
	network, overlay, _ := s.hns()
	switch {
	case !overlay:
		return skip("the network is not an overlay")
	case network.VNI < minWindowsVNI:
		return fail(fmt.Sprintf("Set Backend.VNI to %d, and Backend.Port to %d, in the network configuration.",
			minWindowsVNI, windowsPort),
			"the VNI is %d", network.VNI)
	}
	port := cmp.Or(network.Port, windowsPort)
	if h := s.Windows.HNS; port != windowsPort && h.Known && h.Value.Problem == "" && !h.Value.atLeast(10, 3) {
		return fail(fmt.Sprintf("Set Backend.Port to %d in the network configuration, or update Windows.", windowsPort),
			"the port is %d, but HNS %d.%d supports only %d", port, h.Value.Major, h.Value.Minor, windowsPort)
	}
	if network.VNI > maxWindowsVNI {
		return warn(fmt.Sprintf("Set Backend.VNI to %d in the network configuration.", minWindowsVNI),
			"the VNI is %d, but kube-proxy supports none above %d: Services do not answer", network.VNI, maxWindowsVNI)
	}
	return ok("VNI %d, port %d", network.VNI, port)
}

// windowsForwards checks both interfaces that a packet passes: the host's
// adapter, and the host's endpoint in the network. A group policy of the domain
// may switch forwarding off.
func windowsForwards(s Snapshot) Finding {
	network, _, _ := s.hns()
	host, found := s.hostAdapter()
	v4, v6 := s.families()
	off := func(f Forwarding) bool { return v4 && !f.V4 || v6 && !f.V6 }
	const fix = "Restart flanneld, which switches forwarding on, and check whether a group policy of the domain " +
		"switches it off."
	switch {
	case network.Endpoint == nil:
		return fail("Restart flanneld: it creates the endpoint.", "%s has no host endpoint", network.Name)
	case !v4 && !v6:
		return familiesKnown(s)
	case off(network.Endpoint.Forwarding):
		return fail(fix, "forwarding is off on the host's endpoint of %s", network.Name)
	case !found:
		return s.noAdapter()
	case off(host.Forwarding):
		return fail(fix, "forwarding is off on %s", host.Name)
	}
	return ok("forwarding is on")
}

// podsConnected finds running pods without endpoint: those that the daemon reports, and
// those whose namespace has none.
func podsConnected(s Snapshot) Finding {
	lost := slices.Clone(s.Windows.LostPods.Value)
	if r := s.report(); r != nil {
		lost = append(lost, r.LostPods...)
	}
	slices.Sort(lost)
	if lost = slices.Compact(lost); len(lost) > 0 {
		return fail("Delete these pods, so that they are created anew, and restart kube-proxy. HNS removes the "+
			"endpoints when it restarts or loses the network, and nobody creates them again.",
			"%d have no endpoint: %s", len(lost), several(lost))
	}
	if missing := podsKnown(s); missing.Verdict != "" {
		return missing
	}
	return ok("all have")
}

// macSpoofing is always skipped, because the setting is on the hypervisor. It
// exists for its text, which says what to check.
func macSpoofing(s Snapshot) Finding {
	return skip("cannot be checked on the node%s: in a virtual machine, switch MAC address spoofing on for its "+
		"adapter (Hyper-V: Set-VMNetworkAdapter -MacAddressSpoofing On; VMware: forged transmits, promiscuous mode)",
		s.onMachine())
}

// onMachine returns the machine in parentheses for a Finding; "": it is not
// known.
func (s Snapshot) onMachine() string {
	if m := s.Machine.Value.String(); m != "" {
		return " (" + m + ")"
	}
	return ""
}
