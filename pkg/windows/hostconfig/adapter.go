package hostconfig

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"flannel/pkg/dataplane"
	"flannel/pkg/windows/hns"
)

// The functions of this file find adapters in a list that the caller has read: all of
// the machine (hns.Stack.Adapters). "Bound" means that a virtual switch is bound to the
// physical adapter. Adapter.Virtual reports an adapter of the host on a virtual switch.

// Causes in the log.
//
// The first three are what Restore waits for; the others are events.
const (
	CauseNoAdapter        = "adapter-missing"
	CauseNoAddress        = "address-missing"
	causeNoRoutes         = "routes-missing"
	causeAddressRestored  = "address-restored"
	causeStaticRestored   = "static-restored" // DHCP was turned off, or a static configuration stored
	causeRouteRestored    = "route-restored"
	causeDNSRestored      = "dns-restored"
	causeComplete         = "settings-complete"  // all that was missing is back
	causeSettingsRestored = "interface-restored" // metric, MTU
)

// PhysicalAdapter returns the adapter to bind a switch to: the underlay, or the
// physical adapter behind it if the underlay is the host's virtual adapter. It
// finds that one by name ("vEthernet (<name>)"), else by MAC address. The error is a
// WaitError while the underlay is missing; otherwise waiting does not help.
func PhysicalAdapter(adapters []hns.Adapter, underlay string) (hns.Adapter, error) {
	within, isVirtual := strings.CutPrefix(underlay, "vEthernet (")
	within = strings.TrimSuffix(within, ")")
	var named hns.Adapter
	for _, a := range adapters {
		switch {
		case a.Name == underlay && !a.Virtual(), isVirtual && a.Name == within && !a.Virtual():
			return a, nil
		case a.Name == underlay: // a virtual adapter, whose MAC address leads to the physical one
			named = a
		}
	}
	if named.Name == "" {
		return hns.Adapter{}, dataplane.Waiting(CauseNoAdapter, "the adapter %s to appear", underlay)
	}
	if a, found := find(adapters, func(a hns.Adapter) bool {
		return a.MAC == named.MAC && a.MAC != (dataplane.MAC{}) && !a.Virtual() && !a.Loopback
	}); found {
		return a, nil
	}
	return hns.Adapter{}, fmt.Errorf("no physical adapter is behind %s, and a network needs one: select another adapter with --iface", underlay)
}

// NetworkAdapter returns the physical adapter to which a network's switch is
// bound. HNS reports the name that the adapter had when the network was made.
// If the adapter was renamed since, the virtual adapter with the management
// address leads to it.
func NetworkAdapter(n hns.Network, adapters []hns.Adapter) (hns.Adapter, bool) {
	physical, err := PhysicalAdapter(adapters, "vEthernet ("+n.Adapter+")")
	if err == nil || !n.ManagementIP.IsValid() {
		return physical, err == nil
	}
	host, found := AdapterWith(adapters, n.ManagementIP)
	if found {
		physical, err = PhysicalAdapter(adapters, host.Name)
	}
	return physical, found && err == nil
}

// IsBound reports whether the switch of one of the networks is bound to an
// adapter.
func IsBound(networks []hns.Network, physical hns.Adapter, adapters []hns.Adapter) bool {
	return slices.ContainsFunc(networks, func(n hns.Network) bool {
		adapter, found := NetworkAdapter(n, adapters)
		return found && adapter.Index == physical.Index
	})
}

// HostAdapter returns the adapter that has, or will get, the host's addresses:
// the physical one or, if a switch is bound to it, its virtual adapter. A virtual
// adapter with addresses counts also if bound is false: HNS does not list each switch,
// such as one of Hyper-V. HostAdapter returns false while bound is true, and no virtual
// adapter is up.
func HostAdapter(adapters []hns.Adapter, physical hns.Adapter, bound bool) (hns.Adapter, bool) {
	virtual := slices.DeleteFunc(slices.Clone(adapters), func(a hns.Adapter) bool { return !isVirtualOf(a, physical) })
	if a, found := find(virtual, func(a hns.Adapter) bool { return len(Addresses(a)) > 0 }); found {
		return a, true
	}
	if !bound {
		return physical, true
	}
	return find(virtual, func(a hns.Adapter) bool { return a.Up })
}

// HasOwnAddresses reports whether a physical adapter is up with addresses of its
// own, and no virtual adapter of a switch on it is up.
func HasOwnAddresses(adapters []hns.Adapter, physical hns.Adapter) bool {
	_, found := find(adapters, func(a hns.Adapter) bool { return a.Up && isVirtualOf(a, physical) })
	return !found && physical.Up && len(Addresses(physical)) > 0
}

// isVirtualOf reports whether an adapter is the virtual one of a switch on a
// physical adapter.
func isVirtualOf(a, physical hns.Adapter) bool {
	sameMAC := a.MAC == physical.MAC && a.MAC != (dataplane.MAC{})
	return a.Virtual() && (a.Name == "vEthernet ("+physical.Name+")" || sameMAC)
}

// find returns the first adapter that matches.
func find(adapters []hns.Adapter, matches func(hns.Adapter) bool) (hns.Adapter, bool) {
	i := slices.IndexFunc(adapters, matches)
	if i < 0 {
		return hns.Adapter{}, false
	}
	return adapters[i], true
}

// Addresses returns an adapter's addresses, of both families, without the
// link-local ones, which Windows assigns by itself.
func Addresses(a hns.Adapter) []hns.Address {
	return slices.DeleteFunc(slices.Clone(a.Addrs), func(addr hns.Address) bool {
		return addr.Prefix.Addr().IsLinkLocalUnicast()
	})
}

// hasAPIPA reports whether the adapter has an address of 169.254.0.0/16, which
// Windows assigns when DHCP has not answered.
func hasAPIPA(a hns.Adapter) bool {
	return slices.ContainsFunc(a.Addrs, func(addr hns.Address) bool {
		return addr.Prefix.Addr().Is4() && addr.Prefix.Addr().IsLinkLocalUnicast()
	})
}

// HasAddress reports whether the adapter has an address.
func HasAddress(a hns.Adapter, ip netip.Addr) bool {
	return slices.ContainsFunc(a.Addrs, func(addr hns.Address) bool { return addr.Prefix.Addr() == ip })
}

// AdapterWith returns the adapter that has an address; false, if none has it.
func AdapterWith(adapters []hns.Adapter, ip netip.Addr) (hns.Adapter, bool) {
	return find(adapters, func(a hns.Adapter) bool { return HasAddress(a, ip) })
}
