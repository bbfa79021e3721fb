package doctor

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"flannel/pkg/status"
	"flannel/pkg/underlay"
)

// Windows is what only Windows has.
type Windows struct {
	HNS       Fact[HNS]          `json:"hns"`
	Networks  Fact[[]HNSNetwork] `json:"hnsNetworks"`
	Adapters  Fact[[]Adapter]    `json:"adapters"`
	KubeProxy Fact[[]string]     `json:"kubeProxy"` // its command line; empty: it does not run
	SourceVIP Fact[netip.Addr]   `json:"sourceVIP"` // as published by flanneld source-vip; the zero Addr: none is
	// Reserved are the addresses that host-local gives to no pod: those of the pods, and what is kept from them.
	Reserved Fact[[]netip.Addr] `json:"reserved"`
	Routes   Fact[[]HNSRemote]  `json:"routes"`   // that programs made and that have a gateway
	Programs Fact[[]string]     `json:"programs"` // of a Kubernetes node, those that run: "kubelet", "kube-proxy", "containerd"
	Left     Fact[[]string]     `json:"left"`     // files that scripts before ours keep addresses in
	Lost     Fact[Lost]         `json:"lost"`
}

// Lost is what an adapter had before its switch, and has not got back. The zero Lost: nothing is waited for.
type Lost struct {
	Since   time.Time `json:",omitzero"` // when it was written down
	Adapter string
	What    []string // for a person; empty: all is back
}

// HNS is the Host Network Service.
type HNS struct {
	Problem      string `json:",omitempty"` // what it answers instead of its version
	Major, Minor int
}

// HNSNetwork is a network of HNS, as far as it matters here.
type HNSNetwork struct {
	Name, Type   string // Type is "Overlay" or "L2Bridge"
	Adapter      string // that its vSwitch is bound to
	Subnets      []netip.Prefix
	VNI          int          // Overlay
	Port         int          // Overlay; 0: HNS's own, 4789
	ManagementIP netip.Addr   // zero: none yet
	Remote       []HNSRemote  // what leads to peers, of an Overlay
	Endpoint     *HNSEndpoint // the host's own, of L2Bridge
}

// HNSRemote is the way to a peer: a RemoteSubnetRoute policy, an endpoint that stands for one, or a route; zero: one that
// cannot be read.
type HNSRemote struct {
	Subnet   netip.Prefix
	Provider netip.Addr
}

// HNSEndpoint is a host endpoint.
type HNSEndpoint struct{ Forwarding Forwarding }

// Forwarding is what an interface passes on.
type Forwarding struct{ V4, V6 bool }

// Adapter is a network adapter.
type Adapter struct {
	Name       string
	Index      int
	Virtual    bool // a vEthernet of Hyper-V's
	DHCP       bool
	Addrs      []netip.Addr
	DNS        []netip.Addr
	Forwarding Forwarding
}

// atLeast compares versions of HNS; what each brought is in Microsoft's hcsshim (hcn's supported features).
func (h HNS) atLeast(major, minor int) bool {
	return h.Major > major || h.Major == major && h.Minor >= minor
}

func (h HNS) dsr() bool { return h.Major == 9 && h.Minor >= 3 || h.atLeast(10, 2) }

// hns is the network of ours: by the daemon's word, or else the one of a usual name, at best with this node's subnet.
func (s Snapshot) hns() (network HNSNetwork, overlay, found bool) {
	n := s.node()
	if n != nil {
		overlay = n.Backend == "vxlan"
	}
	for _, one := range s.Windows.Networks.Value {
		if n != nil {
			if slices.ContainsFunc(n.Devices, func(d status.Device) bool { return d.Name == one.Name }) {
				return one, overlay, true
			}
			continue
		}
		isOverlay := one.Type == hnsOverlay && strings.HasPrefix(one.Name, "flannel.")
		if !isOverlay && (one.Type != hnsBridge || one.Name != "cbr0") {
			continue
		}
		if !found || s.fits(one) {
			network, overlay, found = one, isOverlay, true
		}
	}
	return network, overlay, found
}

// Types of networks.
const (
	hnsOverlay = "Overlay"
	hnsBridge  = "L2Bridge"
)

// hnsHas6 tells whether pods can have IPv6 here. An HNS that does not say its version is trusted to be new.
func (s Snapshot) hnsHas6(overlay bool) bool {
	h := s.Windows.HNS
	return !overlay && (!h.Known || h.Value.Problem != "" || h.Value.atLeast(11, 10))
}

// fits tells whether a network has every subnet of this node that HNS can give it.
func (s Snapshot) fits(network HNSNetwork) bool {
	want := slices.DeleteFunc(slices.Clone(s.subnets()), func(p netip.Prefix) bool {
		return p.Addr().Is6() && !s.hnsHas6(network.Type == hnsOverlay)
	})
	return len(want) > 0 && !slices.ContainsFunc(want, func(p netip.Prefix) bool { return !slices.Contains(network.Subnets, p) })
}

// host is the adapter with the host's addresses: by the daemon's word, or else by our network's.
func (s Snapshot) host() (Adapter, bool) {
	n := s.node()
	network, _, _ := s.hns()
	for _, a := range s.Windows.Adapters.Value {
		if n != nil && a.Index == n.Underlay.Index || n == nil && slices.Contains(a.Addrs, network.ManagementIP) {
			return a, true
		}
	}
	return Adapter{}, false
}

// ofPods tells the interfaces that HNS gives the host for a pod network, whose default routes are its own matter.
func (s Snapshot) ofPods(index int) bool {
	return slices.ContainsFunc(s.Windows.Adapters.Value, func(a Adapter) bool { return a.Index == index && underlay.Ours(a.Name) })
}
