package windows

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"flannel/pkg/dataplane"
	"flannel/pkg/windows/hns"
)

// The keys and values of the driver's tables (policies, remotes, routes), and the
// wanted network. The functions of this file make no system calls.

// policyKey identifies a policy of the network.
type policyKey struct {
	Type   string       // of the policy, as HNS names it
	Prefix netip.Prefix // a peer's subnet; invalid for the HostRoute policy
}

// hostRouteKey identifies the HostRoute policy.
func hostRouteKey() policyKey { return policyKey{Type: hns.HostRoutePolicy().Type} }

func (k policyKey) String() string {
	if k.Prefix.IsValid() {
		return k.Prefix.String()
	}
	return k.Type
}

// policyValue is the rest of a policy for a peer; zero for the HostRoute policy.
type policyValue struct {
	VSID     uint32        // the VNI
	Provider netip.Addr    // the address of the peer on the underlay
	MAC      dataplane.MAC // of the network of the peer
	Invalid  bool          // it exists twice, or cannot be parsed, and must be replaced
}

// policy returns the policy in HNS's form.
func (k policyKey) policy(v policyValue) hns.Policy {
	if !k.Prefix.IsValid() {
		return hns.HostRoutePolicy()
	}
	return hns.RemoteSubnet{Prefix: k.Prefix, VSID: v.VSID, Provider: v.Provider, MAC: v.MAC}.Policy()
}

// parsePolicy is the inverse of policy. Ours are RemoteSubnetRoute policies,
// which lead to peers, and the HostRoute policy between host and pods. One of ours that
// cannot be parsed has no Prefix, and is Invalid: it is deleted.
func parsePolicy(p hns.Policy) (k policyKey, v policyValue, ours bool) {
	if p.IsHostRoute() {
		return hostRouteKey(), policyValue{}, true
	}
	if !p.IsRemoteSubnet() {
		return k, v, false
	}
	r, err := p.RemoteSubnet()
	if err != nil {
		return policyKey{Type: p.Type}, policyValue{Invalid: true}, true
	}
	return policyKey{hns.RemoteSubnetType, r.Prefix}, policyValue{VSID: r.VSID, Provider: r.Provider, MAC: r.MAC}, true
}

// remoteValue is a remote endpoint that stands for a peer; see remoteStore.
type remoteValue struct {
	Provider netip.Addr
	MAC      dataplane.MAC
}

// hostRoute identifies a route of the host. Windows can have several routes to
// one destination by different gateways.
type hostRoute struct {
	Dst netip.Prefix
	Via netip.Addr
}

func (r hostRoute) String() string { return fmt.Sprintf("%s via %s", r.Dst, r.Via) }

// wantedNetwork translates a device to an HNS network on a physical adapter. It
// leaves out IPv6 if HNS has no dual-stack networks. The error means that this Windows
// cannot have the network; name and type are set nevertheless.
func wantedNetwork(dev device, adapter string, v hns.Version) (hns.Network, error) {
	n := hns.Network{Name: dev.name, Adapter: adapter, NonPersistent: !dev.Switch} // a Switch outlives a restart of HNS
	for _, s := range dev.Subnets {
		if s.Addr().Is4() || v.Features().IPv6DualStack {
			n.Subnets = append(n.Subnets, hns.Subnet{Prefix: s, Gateway: s.Addr().Next()}) // 10.244.1.1 of 10.244.1.0/24
		}
	}
	if err := dev.network.complete(&n, v); err != nil {
		return n, err
	}
	if len(n.Subnets) == 0 {
		return n, fmt.Errorf("this Windows (HNS %s) has no IPv6 networks, which need 11.10: update it, or enable IPv4", v)
	}
	return n, nil
}

// differs returns the property of an existing network that is not as wanted and
// that HNS cannot change; "": none. What HNS does not report (subnets, gateways,
// VNI) counts as wanted: it is no reason to delete a network with pods on it. Nor
// does differs compare what applies to new pods only (MAC pool, DNS servers),
// since making the network again would disconnect the existing ones.
func differs(have, want hns.Network) string {
	port := func(n hns.Network) uint16 { return cmp.Or(n.VxlanPort, hns.DefaultVxlanPort) }
	switch {
	case have.Type != want.Type:
		return fmt.Sprintf("its type is %s and not %s", have.Type, want.Type)
	case len(have.Subnets) > 0 && !slices.EqualFunc(sorted(have.Subnets), sorted(want.Subnets), agree):
		return fmt.Sprintf("its subnet is %s and not %s", subnets(have.Subnets), subnets(want.Subnets))
	case want.Type == hns.Overlay && port(have) != port(want):
		return fmt.Sprintf("its UDP port is %d and not %d", port(have), port(want))
	}
	return ""
}

// agree reports whether a subnet is as wanted, in what HNS reports of it.
func agree(have, want hns.Subnet) bool {
	return have.Prefix == want.Prefix && (!have.Gateway.IsValid() || have.Gateway == want.Gateway) &&
		(have.VSID == 0 || have.VSID == want.VSID)
}

// sorted orders subnets by prefix: HNS may list them in any order.
func sorted(list []hns.Subnet) []hns.Subnet {
	return slices.SortedFunc(slices.Values(list), func(a, b hns.Subnet) int { return a.Prefix.Compare(b.Prefix) })
}

// subnets formats subnets for messages.
func subnets(list []hns.Subnet) string {
	var texts []string
	for _, s := range list {
		text := fmt.Sprintf("%s via %s", s.Prefix, s.Gateway)
		if s.VSID != 0 {
			text += fmt.Sprintf(" with VNI %d", s.VSID)
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, ", ")
}
