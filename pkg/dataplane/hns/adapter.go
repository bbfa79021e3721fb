package hns

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"flannel/pkg/hns"
	"flannel/pkg/mac"
)

// The first HNS network on an adapter binds a virtual switch to it. The adapter keeps its name and loses its addresses,
// which appear some 5 to 25 seconds later on a new virtual adapter, "vEthernet (<name>)", with the same MAC address.
// When the last network goes, they go back. All of this is pure.

// physicalAdapter finds the adapter that a switch is to bind: the underlay, or what is behind it when that is the
// host's end of a switch.
func physicalAdapter(adapters []hns.Adapter, underlay string) (hns.Adapter, error) {
	within, isVirtual := strings.CutPrefix(underlay, "vEthernet (")
	within = strings.TrimSuffix(within, ")")
	var named hns.Adapter
	for _, a := range adapters {
		switch {
		case a.Name == underlay && !a.Virtual(), isVirtual && a.Name == within && !a.Virtual():
			return a, nil
		case a.Name == underlay:
			named = a
		}
	}
	for _, a := range adapters {
		if named.Name != "" && a.MAC == named.MAC && a.MAC != (mac.Addr{}) && !a.Virtual() && !a.Loopback {
			return a, nil
		}
	}
	if named.Name != "" {
		return hns.Adapter{}, fmt.Errorf("no physical adapter is behind %s: a network needs one; name another with --iface", underlay)
	}
	return hns.Adapter{}, waiting(causeNoAdapter, "the adapter %s to appear", underlay)
}

// adapterOf finds the physical adapter with a network's switch. HNS knows it by the name that it had when the network was
// made: one that has another name by now is behind the host's end of the switch, whose name stays.
func adapterOf(n hns.Network, adapters []hns.Adapter) (hns.Adapter, bool) {
	physical, err := physicalAdapter(adapters, "vEthernet ("+n.Adapter+")")
	if err == nil || !n.ManagementIP.IsValid() {
		return physical, err == nil
	}
	host, there := adapterWith(adapters, n.ManagementIP)
	if there {
		physical, err = physicalAdapter(adapters, host.Name)
	}
	return physical, there && err == nil
}

// isBound tells whether one of the networks has its switch on an adapter.
func isBound(networks []hns.Network, physical hns.Adapter, adapters []hns.Adapter) bool {
	return slices.ContainsFunc(networks, func(n hns.Network) bool {
		on, found := adapterOf(n, adapters)
		return found && on.Index == physical.Index
	})
}

// hostAdapter finds the adapter that has, or is to get, the host's addresses: the physical one, or, when a switch is
// bound to that, its virtual one, which may not be there yet.
func hostAdapter(adapters []hns.Adapter, physical hns.Adapter, bound bool) (hns.Adapter, bool) {
	var ends []hns.Adapter
	for _, a := range adapters {
		if a.Virtual() && (a.Name == "vEthernet ("+physical.Name+")" || a.MAC == physical.MAC && a.MAC != (mac.Addr{})) {
			ends = append(ends, a)
		}
	}
	for _, a := range ends {
		if len(addresses(a)) > 0 {
			return a, true
		}
	}
	if !bound {
		return physical, true
	}
	i := slices.IndexFunc(ends, func(a hns.Adapter) bool { return a.Up })
	if i < 0 {
		return hns.Adapter{}, false
	}
	return ends[i], true
}

// addresses are those that other nodes could reach an adapter by: not the link-local ones that it gives itself.
func addresses(a hns.Adapter) []hns.Address {
	var all []hns.Address
	for _, one := range a.Addrs {
		if !one.Prefix.Addr().IsLinkLocalUnicast() {
			all = append(all, one)
		}
	}
	return all
}

// apipa tells whether Windows has given up waiting for an IPv4 address.
func apipa(a hns.Adapter) bool {
	return slices.ContainsFunc(a.Addrs, func(one hns.Address) bool {
		return one.Prefix.Addr().Is4() && one.Prefix.Addr().IsLinkLocalUnicast()
	})
}

func hasAddress(a hns.Adapter, ip netip.Addr) bool {
	return slices.ContainsFunc(a.Addrs, func(one hns.Address) bool { return one.Prefix.Addr() == ip })
}

// adapterWith finds the adapter that has an address.
func adapterWith(adapters []hns.Adapter, ip netip.Addr) (hns.Adapter, bool) {
	i := slices.IndexFunc(adapters, func(a hns.Adapter) bool { return hasAddress(a, ip) })
	if i < 0 {
		return hns.Adapter{}, false
	}
	return adapters[i], true
}

// waitError is an error for what only takes time. Its text stays the same for as long as the same thing is waited for, so
// that it is logged once; its cause stays the same even if the text is reworded.
type waitError struct {
	cause string
	err   error
}

func (w *waitError) Error() string { return w.err.Error() }
func (w *waitError) Unwrap() error { return w.err }

// Cause is the attribute cause of the line in the log.
func (w *waitError) Cause() string { return w.cause }

func waiting(cause, format string, args ...any) error {
	return &waitError{cause, fmt.Errorf("waiting for "+format, args...)}
}

// Causes of a wait.
const (
	causeHNSSilent     = "hns-silent"
	causeNoAdapter     = "adapter-missing"
	causeAddressMoves  = "address-moves"
	causeNoAddress     = "address-missing"
	causeNoRoutes      = "routes-missing"
	causeNoEndpoint    = "endpoint-missing"
	causeNoManagement  = "management-ip-missing"
	causeNoMAC         = "mac-missing"
	causeNetworkRemade = "network-remade"
)

// Other causes in the log.
const (
	causeNetworkMade     = "network-made"
	causeNetworkDiffers  = "network-differs"
	causeNoDualStack     = "no-dual-stack"
	causeNoBlackholes    = "no-blackholes"
	causeOtherAddress    = "other-address" // HNS sends from
	causeAddressRestored = "address-restored"
	causeRouteRestored   = "route-restored"
	causeDNSRestored     = "dns-restored"
)
