// This file has what the checks of Windows (windows.go) know about a node, and
// functions that find in it flanneld's own network and adapter.

package doctor

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"flannel/pkg/underlay"
)

// Windows is the part of a Snapshot that exists only on Windows; on Linux, all of
// it is zero. A Fact may be not known, and its Value is then zero or a part: the
// functions below find nothing in it, and a check that needs it says so. See
// Snapshot for who reads the JSON.
type Windows struct {
	HNS       Fact[HNS]          `json:"hns"`
	Networks  Fact[[]HNSNetwork] `json:"hnsNetworks"`
	Ghosts    Fact[[]HNSNetwork] `json:"ghosts"`    // networks that only the older API of HNS lists: name and type
	Adapters  Fact[[]Adapter]    `json:"adapters"`  // without loopback
	KubeProxy Fact[[]string]     `json:"kubeProxy"` // its command line without secrets; empty: it does not run
	SourceVIP Fact[netip.Addr]   `json:"sourceVIP"` // as published by flanneld source-vip; zero: it is not published
	// Reserved are the addresses that host-local does not assign to a new pod:
	// those of pods, and reserved ones.
	Reserved  Fact[[]netip.Addr] `json:"reserved"`
	Routes    Fact[[]PeerRoute]  `json:"routes"`   // those that programs added and that have a next hop
	Programs  Fact[[]string]     `json:"programs"` // those of "kubelet", "kube-proxy", "containerd", "dockerd" that run
	LeftFiles Fact[[]string]     `json:"left"`     // paths of files in which other scripts save a source VIP
	Lost      Fact[LostSettings] `json:"lost"`
	Category  Fact[Category]     `json:"category"`
	Firewall  Fact[WinFirewall]  `json:"firewall"`
	LostPods  Fact[[]string]     `json:"lostPods"` // names of running pods whose namespace has no endpoint
}

// LostSettings are settings that an adapter had before flanneld created a
// vSwitch on it, and that it does not have now. The zero LostSettings means
// that flanneld has not saved any.
type LostSettings struct {
	Since    time.Time `json:",omitzero"` // when they were saved
	Adapter  string
	Settings []string `json:"What"` // for the user, like "address 192.168.0.3/24"; empty: none is lost
}

// Category is the category of the host's network, as Windows names it, and the
// one that it had before flanneld created a vSwitch. The zero Category means
// that flanneld has not saved one.
type Category struct {
	Adapter    string // that has the host's address
	Now, Saved string
	Done       bool   // flanneld has restored it or given that up; false: it is still to be restored
	Problem    string `json:",omitempty"` // why flanneld has given up; else ""
}

// HNS is the version of the Host Network Service.
type HNS struct {
	Problem      string `json:",omitempty"` // why the version could not be read; else ""
	Major, Minor int
}

// HNSNetwork holds the properties of an HNS network that a check needs.
type HNSNetwork struct {
	Name, Type   string
	Adapter      string // to which the vSwitch is bound
	Subnets      []netip.Prefix
	VNI          int          // of an overlay
	Port         int          // of an overlay; 0: the default, 4789
	ManagementIP netip.Addr   // zero: HNS has not assigned one yet
	Remote       []PeerRoute  // of an overlay
	Endpoint     *HNSEndpoint // of an L2Bridge: the host's; nil: there is none
}

// The types of HNS networks that flanneld creates.
const (
	hnsOverlay = "Overlay"
	hnsBridge  = "L2Bridge"
)

// PeerRoute says to which node (Provider) packets for a Subnet are sent. With
// host-gw it is a route; in an overlay it is a RemoteSubnetRoute policy, or
// before HNS 9.2 a remote endpoint. The zero PeerRoute is one that could not be
// parsed.
type PeerRoute struct {
	Subnet   netip.Prefix
	Provider netip.Addr
}

// HNSEndpoint is the host's endpoint in a network.
type HNSEndpoint struct{ Forwarding Forwarding }

// Forwarding says for which address families an interface forwards packets.
type Forwarding struct{ V4, V6 bool }

// Adapter is a network adapter.
type Adapter struct {
	Name       string
	Index      int
	Virtual    bool        // a vEthernet adapter of Hyper-V
	Kind       AdapterKind `json:",omitempty"`
	VLAN       int         `json:",omitempty"` // whose tag the driver adds; 0: none, or it is not known
	DHCP       bool
	Addrs      []netip.Addr
	DNS        []netip.Addr
	Forwarding Forwarding
}

// AdapterKind is a kind of adapter on which a vSwitch may not work; "": any
// other.
type AdapterKind string

// Kinds of adapters.
const (
	WiFiAdapter   AdapterKind = "Wi-Fi"
	TunnelAdapter AdapterKind = "tunnel" // a VPN
	TeamAdapter   AdapterKind = "team"   // LBFO
)

// atLeast reports whether HNS has this version or a later one. Package hcn of
// Microsoft's hcsshim lists what each version supports.
func (h HNS) atLeast(major, minor int) bool {
	return h.Major > major || h.Major == major && h.Minor >= minor
}

// supportsDSR reports whether HNS supports direct server return: 9.3 and later
// do, except 10.0 and 10.1.
func (h HNS) supportsDSR() bool { return h.Major == 9 && h.Minor >= 3 || h.atLeast(10, 2) }

// hns returns flanneld's HNS network: the one in the daemon's report, or
// without a report one with a usual name, preferably with this node's subnets.
// overlay reports whether the backend is vxlan.
func (s Snapshot) hns() (network HNSNetwork, overlay, found bool) {
	node := s.node()
	if node != nil {
		overlay = node.Backend == "vxlan"
	}
	for _, n := range s.Windows.Networks.Value {
		if node != nil {
			if hasDevice(*node, n.Name) {
				return n, overlay, true
			}
			continue
		}
		isOverlay := n.Type == hnsOverlay && strings.HasPrefix(n.Name, "flannel.")
		if !isOverlay && (n.Type != hnsBridge || n.Name != "cbr0") {
			continue
		}
		if !found || s.hasSubnets(n) {
			network, overlay, found = n, isOverlay, true
		}
	}
	return network, overlay, found
}

// otherNetworks returns the networks that pods may have, without flanneld's own one.
func (s Snapshot) otherNetworks() []HNSNetwork {
	own, _, found := s.hns()
	return slices.DeleteFunc(slices.Clone(s.Windows.Networks.Value), func(n HNSNetwork) bool {
		// switchNetwork: a network without pods, for the vSwitch alone.
		return found && n.Name == own.Name || n.Name == switchNetwork || n.Type != hnsOverlay && n.Type != hnsBridge
	})
}

// podsHaveIPv6 reports whether HNS supports IPv6 for pods. If its version is
// not known, it is assumed to be a recent one.
func (s Snapshot) podsHaveIPv6(overlay bool) bool {
	h := s.Windows.HNS
	return !overlay && (!h.Known || h.Value.Problem != "" || h.Value.atLeast(11, 10))
}

// hasSubnets reports whether the network has all subnets of this node, except
// an IPv6 subnet that HNS does not support.
func (s Snapshot) hasSubnets(network HNSNetwork) bool {
	want := slices.DeleteFunc(slices.Clone(s.subnets()), func(p netip.Prefix) bool {
		return p.Addr().Is6() && !s.podsHaveIPv6(network.Type == hnsOverlay)
	})
	missing := func(p netip.Prefix) bool { return !slices.Contains(network.Subnets, p) }
	return len(want) > 0 && !slices.ContainsFunc(want, missing)
}

// hostAdapter returns the adapter with the host's address: the underlay in the
// daemon's report, or without a report the adapter with the management address
// of flanneld's network.
func (s Snapshot) hostAdapter() (adapter Adapter, found bool) {
	n := s.node()
	network, _, _ := s.hns()
	for _, a := range s.Windows.Adapters.Value {
		if n != nil && a.Index == n.Underlay.Index || n == nil && slices.Contains(a.Addrs, network.ManagementIP) {
			return a, true
		}
	}
	return Adapter{}, false
}

// isPodInterface reports whether the interface belongs to a pod network. HNS
// gives such an interface a default route, which the host does not use.
func (s Snapshot) isPodInterface(index int) bool {
	return slices.ContainsFunc(s.Windows.Adapters.Value, func(a Adapter) bool {
		return a.Index == index && underlay.Ours(a.Name)
	})
}
