package hns

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"flannel/pkg/hns"
	"flannel/pkg/mac"
)

// What HNS and the IP stack are to hold, as far as we fill them. All of it is pure.

// policyKey is what makes a policy of an HNS network unique among those that we set. The prefix is a peer's subnet.
type policyKey struct {
	Type   string
	Prefix netip.Prefix
}

func (k policyKey) String() string {
	if k.Prefix.IsValid() {
		return k.Prefix.String()
	}
	return k.Type
}

// policyValue is what a policy says of a peer.
type policyValue struct {
	VSID     uint32
	Provider netip.Addr
	MAC      mac.Addr
	Odd      bool // there twice, or not to be understood: to be made anew
}

func (k policyKey) policy(v policyValue) hns.Policy {
	if !k.Prefix.IsValid() {
		return hns.HostRoutePolicy()
	}
	return hns.RemoteSubnet{Prefix: k.Prefix, VSID: v.VSID, Provider: v.Provider, MAC: v.MAC}.Policy()
}

// parsePolicy is the other way about; ours are those that lead to peers, and the one between host and pods.
func parsePolicy(p hns.Policy) (k policyKey, v policyValue, ours bool) {
	if p.Type == hns.HostRoutePolicy().Type {
		return policyKey{Type: p.Type}, policyValue{}, true
	}
	if !p.IsRemoteSubnet() {
		return k, v, false
	}
	r, err := p.RemoteSubnet()
	if err != nil {
		return policyKey{Type: p.Type}, policyValue{Odd: true}, true
	}
	return policyKey{p.Type, r.Prefix}, policyValue{VSID: r.VSID, Provider: r.Provider, MAC: r.MAC}, true
}

// remoteValue is an endpoint that stands for a peer, where HNS has no policies for it.
type remoteValue struct {
	Provider netip.Addr
	MAC      mac.Addr
}

// hostRoute is a route of the host: Windows keeps several to one destination apart by their gateways.
type hostRoute struct {
	Dst netip.Prefix
	Via netip.Addr
}

func (r hostRoute) String() string { return fmt.Sprintf("%s via %s", r.Dst, r.Via) }

// wantedNetwork is the HNS network that a device comes to, on a physical adapter. Without dual-stack networks IPv6 is left out.
func wantedNetwork(dev device, adapter string, v hns.Version, f hns.Features) (hns.Network, error) {
	n := hns.Network{Name: dev.name, Adapter: adapter, NonPersistent: !dev.Switch}
	for _, s := range dev.Subnets {
		if s.Addr().Is4() || f.IPv6DualStack {
			n.Subnets = append(n.Subnets, hns.Subnet{Prefix: s, Gateway: s.Addr().Next()})
		}
	}
	if err := dev.network().want(&n, v, f); err != nil {
		return n, err
	}
	if len(n.Subnets) == 0 {
		return n, fmt.Errorf("this Windows (HNS %s) has no IPv6 networks, which need 11.10: update it, or enable IPv4", v)
	}
	return n, nil
}

// differs says in what a network that is there cannot be the wanted one; HNS changes nothing of that afterwards. What
// counts only for pods that come later (MAC pool, DNS servers) is no reason to cut off those that are there.
func differs(have, want hns.Network) string {
	port := func(p uint16) uint16 {
		if p == 0 {
			return hns.DefaultVxlanPort
		}
		return p
	}
	switch {
	case have.Type != want.Type:
		return fmt.Sprintf("its type is %s and not %s", have.Type, want.Type)
	case !slices.Equal(sorted(have.Subnets), sorted(want.Subnets)):
		return fmt.Sprintf("its subnet is %s and not %s", subnets(have.Subnets), subnets(want.Subnets))
	case want.Type == hns.Overlay && port(have.VxlanPort) != port(want.VxlanPort):
		return fmt.Sprintf("its UDP port is %d and not %d", port(have.VxlanPort), port(want.VxlanPort))
	}
	return ""
}

// sorted are the subnets by their prefixes: HNS may tell of them in another order.
func sorted(all []hns.Subnet) []hns.Subnet {
	return slices.SortedFunc(slices.Values(all), func(a, b hns.Subnet) int { return a.Prefix.Compare(b.Prefix) })
}

func subnets(all []hns.Subnet) string {
	var text []string
	for _, s := range all {
		one := fmt.Sprintf("%s via %s", s.Prefix, s.Gateway)
		if s.VSID != 0 {
			one += fmt.Sprintf(" with VNI %d", s.VSID)
		}
		text = append(text, one)
	}
	return strings.Join(text, ", ")
}
