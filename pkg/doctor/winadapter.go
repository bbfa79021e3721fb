package doctor

import "strings"

// switchAdapter returns the adapter to which the vSwitch is bound, or will be (not bound):
// the adapter of the network, of the daemon, or of the default route. found is false if it
// is not known.
func (s Snapshot) switchAdapter() (a Adapter, bound, found bool) {
	network, _, bound := s.hns() // flanneld's network, if there is one, has bound a vSwitch
	index := 0
	if n := s.node(); n != nil {
		index = n.Underlay.Index
	} else if defaults := s.Interfaces.Value.Defaults; len(defaults) > 0 {
		index = defaults[0].Index
	}
	byIndex, _ := s.adapter(func(a Adapter) bool { return a.Index == index })
	name := byIndex.Name
	if physical, virtual := strings.CutPrefix(name, "vEthernet ("); virtual {
		name, bound = strings.TrimSuffix(physical, ")"), true
	}
	if bound && network.Adapter != "" {
		name = network.Adapter
	}
	a, found = s.adapter(func(a Adapter) bool { return a.Name == name && !a.Virtual })
	return a, bound, found
}

// adapter returns the first adapter that matches; false, if none does.
func (s Snapshot) adapter(matches func(Adapter) bool) (Adapter, bool) {
	for _, a := range s.Windows.Adapters.Value {
		if matches(a) {
			return a, true
		}
	}
	return Adapter{}, false
}

// adapterTakesSwitch finds an adapter on which a vSwitch does not work. HNS only
// says that it found no adapter, or the host reaches nobody behind the vSwitch.
func adapterTakesSwitch(s Snapshot) Finding {
	a, bound, found := s.switchAdapter()
	network, _, _ := s.hns()
	const another = "select another adapter with --iface"
	switch {
	case !found:
		return s.noAdapter()
	case a.VLAN != 0 && !bound:
		return fail("Set VlanID to 0 and let the hypervisor or the port of the switch tag the packets, or "+another+".",
			"%s has the VlanID %d, and packets lose this tag behind a vSwitch", a.Name, a.VLAN)
	case a.VLAN != 0:
		return warn("Set VlanID to 0 and let the hypervisor or the port of the switch tag the packets.",
			"%s has the VlanID %d, and packets may lose this tag behind the vSwitch", a.Name, a.VLAN)
	case bound:
		return ok("%s has one", a.Name)
	case a.Kind == TunnelAdapter:
		return fail("Start flanneld with --iface=ADAPTER, an Ethernet adapter.", "%s is a VPN or another tunnel, on which HNS makes no network", a.Name)
	case a.Kind == WiFiAdapter && s.bridgeWanted(network):
		return fail("Use vxlan, or "+another+".", "%s is a Wi-Fi adapter, on which HNS makes no L2Bridge", a.Name)
	case a.Kind == WiFiAdapter:
		return warn("Use an Ethernet adapter.", "%s is a Wi-Fi adapter, and access points drop packets with other MAC addresses", a.Name)
	case a.Kind == TeamAdapter:
		return warn("Use Switch Embedded Teaming, or one adapter of the team.",
			"%s is a team of adapters (LBFO), which Windows Server 2022 and later refuse", a.Name)
	}
	return ok("%s", a.Name)
}

// bridgeWanted reports whether the backend of the daemon is host-gw, or network is of its
// type.
func (s Snapshot) bridgeWanted(network HNSNetwork) bool {
	n := s.node()
	return n != nil && n.Backend == "host-gw" || network.Type == hnsBridge
}
