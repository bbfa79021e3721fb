package doctor

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"flannel/pkg/dataplane"
	"flannel/pkg/status"
	"flannel/pkg/underlay"
	"flannel/subnet"
)

// Fact is a value that package probe may have read. The zero Fact means that
// probe did not try to read it.
type Fact[T any] struct {
	Value T    `json:"value"` // if it is not known, the part that could be read
	Known bool `json:"known"`
	// WhyNot is the reason if the value is not known; "": probe did not try.
	WhyNot string `json:"whyNot,omitempty"`
	// Absent means that this node or its store has no such value, for the reason
	// WhyNot.
	Absent bool `json:"absent,omitempty"`
}

// Known returns a Fact with a value.
func Known[T any](v T) Fact[T] { return Fact[T]{Value: v, Known: true} }

// Unknown returns a Fact that could not be read, with the reason.
func Unknown[T any](why string) Fact[T] { return Fact[T]{WhyNot: why} }

// Absent returns a Fact that this node or its store does not have, with the reason.
func Absent[T any](why string) Fact[T] { return Fact[T]{WhyNot: why, Absent: true} }

// missing returns the Finding of a check that needs the value: the zero Finding if it is known.
func (f Fact[T]) missing() Finding {
	switch {
	case f.Known:
		return Finding{}
	case f.Absent || f.WhyNot == "":
		return skip("%s", cmp.Or(f.WhyNot, "not examined"))
	}
	return undecidable("%s", f.WhyNot)
}

// Snapshot is the state of a node at one time, as far as it could be read. The doctor's
// bundle has it as snapshot.json, for people: no program of ours reads that.
type Snapshot struct {
	OS      string    `json:"os"` // runtime.GOOS
	At      time.Time `json:"at"`
	Version string    `json:"version"` // of the program that made the Snapshot

	SubnetFile string           `json:"subnetFile"`
	Env        Fact[subnet.Env] `json:"env"` // the content of the subnet file; a known zero Env: the file does not exist
	// EnvMalformed means that Env is not known because of the content or the owner of
	// the file; its WhyNot says what is wrong.
	EnvMalformed bool                    `json:"envMalformed,omitempty"`
	Daemon       Fact[Answer]            `json:"daemon"`
	Processes    Fact[[]Process]         `json:"processes"` // daemons, in this network namespace or in one that is not known
	Interfaces   Fact[underlay.Snapshot] `json:"interfaces"`
	CNI          Fact[CNI]               `json:"cni"`
	Machine      Fact[Machine]           `json:"machine"`
	Cluster      Cluster                 `json:"cluster"`
	Linux        Linux                   `json:"linux"`
	Windows      Windows                 `json:"windows"`
}

// Machine is the vendor and product in the firmware: on a virtual machine,
// those of the hypervisor or cloud.
type Machine struct {
	Vendor  string `json:"vendor"`
	Product string `json:"product"`
}

// Answer is the daemon's status report, or Problem: no daemon runs, or it does not answer.
// After any other error, the Fact around the Answer is not known.
type Answer struct {
	Problem string         `json:"problem,omitempty"` // why Report is nil; else ""
	Report  *status.Report `json:"report,omitempty"`
}

// Process is a running program.
type Process struct {
	PID  int      `json:"pid"`
	Name string   `json:"name"`
	Args []string `json:"args,omitempty"` // without its name, and without secrets
	// SubnetFile is the path of a daemon's subnet file without symbolic links; "": it is not
	// known, or all daemons of the node count as having the same one, as on Windows.
	SubnetFile string `json:"subnetFile,omitempty"`
	// WhyNot is why it is not known whether the process is a daemon of this node, or with
	// which subnet file; "": it is one.
	WhyNot string `json:"whyNot,omitempty"`
}

// CNI is the CNI configuration and the plugins that container runtimes use.
type CNI struct {
	ConfDir string          `json:"confDir"`
	Files   []CNIFile       `json:"files"`   // in the order in which runtimes look at them
	BinDir  string          `json:"binDir"`  // several are separated by ", "
	Plugins map[string]bool `json:"plugins"` // by program name, whether it is executable; nil: no directory of BinDir was read
	// Problem is why containerd's own directories are not known, or which of them does
	// not exist; "": they exist, or there is no containerd.
	Problem string `json:"problem,omitempty"`
	// Unread has the reasons why something that exists could not be read: by the name of one of
	// Files, which then has no text; by directory/name of a plugin; by a directory of BinDir, after
	// which no other one was read, because runtimes run the first plugin of a name.
	Unread map[string]string `json:"unread,omitempty"`
}

// CNIFile is a CNI network configuration.
type CNIFile struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// Cluster is what was read from the store of leases.
type Cluster struct {
	// Ahead is the store's time minus this node's; it may be wrong by two seconds.
	Ahead        Fact[time.Duration] `json:"clockAhead"`
	Node         string              `json:"node,omitempty"` // this node's name there; "": not known
	PodCIDRs     Fact[[]string]      `json:"podCIDRs"`
	WindowsNodes Fact[[]string]      `json:"windowsNodes"` // names; only the first few
	// Proxy is the URL of the HTTP proxy for requests to the API server,
	// without its password; "": there is none.
	Proxy Fact[string] `json:"proxy"`
	// Unreachable is the error, or the proxy's answer, instead of the API
	// server's; "": it answered, or was not asked. The key has the field's former name.
	Unreachable string `json:"unheard,omitempty"`
	// Services are the networks of Services; read only on systems where a check
	// needs them.
	Services Fact[[]netip.Prefix] `json:"serviceNetworks"`
}

// Linux is the part of a Snapshot that exists only on Linux.
type Linux struct {
	Kernel    string              `json:"kernel"`  // release, "6.1.0-28-amd64"
	Sysctls   Fact[Sysctls]       `json:"sysctls"` // those that a check needs
	Devices   Fact[[]Device]      `json:"devices"` // without loopback
	IPTables  Fact[[]Listing]     `json:"iptables"`
	IP6Tables Fact[[]Listing]     `json:"ip6tables"`
	NFTables  Fact[string]        `json:"nftables"` // output of nft -n -j list ruleset
	Managers  Fact[[]LinkManager] `json:"linkManagers"`
	Reserved  Fact[[]netip.Addr]  `json:"reserved"` // addresses that host-local does not assign to a new pod
	Paths     Fact[[]Path]        `json:"paths"`    // to the peers that probe sent packets to: not all
}

// Sysctls maps the paths of kernel parameters ("net/ipv4/ip_forward") to their
// values. A parameter of the host that is not in it does not exist. One of a device
// ("net/ipv4/conf/cni0/forwarding") is in it only if its value is unusual.
type Sysctls map[string]string

// Device is a network device.
type Device struct {
	Name        string     `json:"name"`
	Index       int        `json:"index"`
	Type        string     `json:"type"`             // "vxlan", "bridge", "veth", …
	MTU         int        `json:"mtu"`              // bytes
	Master      int        `json:"master,omitempty"` // index of the device of which it is a port, such as a bridge; 0: none
	VNI         int        `json:"vni,omitempty"`
	Port        int        `json:"port,omitempty"`   // UDP
	Parent      int        `json:"parent,omitempty"` // index of the device beneath a tunnel
	Driver      string     `json:"driver,omitempty"` // of hardware
	TxChecksum  Fact[bool] `json:"txChecksum"`       // checksum offload is on: the device below computes the checksums
	OuterIsIPv6 bool       `json:"outerIsIPv6,omitempty"`
}

// Listing is what one variant of iptables has, as lines of iptables-save without
// comments, and without kube-proxy's chains in the table nat. A packet must pass
// the tables of all variants.
type Listing struct {
	Variant string   `json:"variant"` // ruleset.VariantNFT or ruleset.VariantLegacy
	Lines   []string `json:"lines"`
}

// LinkManager is a program that configures network devices.
type LinkManager struct {
	Name    string   `json:"name"`
	Running bool     `json:"running"`
	Manages []string `json:"manages"` // devices
}

// report returns the daemon's status report; nil: there is none.
func (s Snapshot) report() *status.Report {
	if !s.Daemon.Known {
		return nil
	}
	return s.Daemon.Value.Report
}

// node returns the node in the daemon's report; nil: there is no report, or the
// node has no lease.
func (s Snapshot) node() *status.Node {
	if r := s.report(); r != nil {
		return r.Node
	}
	return nil
}

// tunnels returns flanneld's tunnel devices: those in the daemon's report, or
// without a report those with a usual name.
func (s Snapshot) tunnels() (tunnels []Device) {
	n := s.node()
	for _, d := range s.Linux.Devices.Value {
		isOurs := n == nil || d.Name != n.Underlay.Name && hasDevice(*n, d.Name)
		if _, isTunnel := d.traits(); isOurs && isTunnel {
			tunnels = append(tunnels, d)
		}
	}
	return tunnels
}

// vxlans returns those of the tunnel devices that are of type vxlan.
func (s Snapshot) vxlans() []Device {
	return slices.DeleteFunc(s.tunnels(), func(d Device) bool { return d.Type != "vxlan" })
}

// traits returns what is known of the device's kind; false: it is no tunnel.
func (d Device) traits() (t dataplane.Traits, isTunnel bool) {
	return dataplane.TraitsOfLink(d.Type, d.Name)
}

// overhead returns the bytes that a tunnel adds to a packet.
func (d Device) overhead() int {
	t, _ := d.traits()
	return t.Overhead(d.OuterIsIPv6)
}

// isForIPv6 reports whether a device's name is that of a tunnel for IPv6 packets of pods only.
func isForIPv6(name string) bool {
	return strings.HasPrefix(name, "flannel-v6.") || name == wireGuardV6
}

// hasDevice reports whether a device of the daemon's report has that name.
func hasDevice(n status.Node, name string) bool {
	return slices.ContainsFunc(n.Devices, func(d status.Device) bool { return d.Name == name })
}

// networks returns the pod networks with this node's subnets, by the daemon's
// report, or without one by the subnet file. Those of a family that is not in
// use are zero.
func (s Snapshot) networks() []status.Network {
	if n := s.node(); n != nil {
		return n.Networks
	}
	return networksOf(s.Env.Value)
}

// networksOf returns the pod networks of a subnet file. Those of a family that is not in
// use are zero.
func networksOf(e subnet.Env) []status.Network {
	return []status.Network{{Network: e.V4Network, Subnet: e.V4Subnet}, {Network: e.V6Network, Subnet: e.V6Subnet}}
}

// subnets returns this node's subnets; nil: they are not known.
func (s Snapshot) subnets() (own []netip.Prefix) {
	for _, n := range s.networks() {
		if n.Subnet.IsValid() {
			own = append(own, n.Subnet)
		}
	}
	return own
}

// isOwn reports whether an address is in this node's subnets.
func (s Snapshot) isOwn(a netip.Addr) bool {
	return slices.ContainsFunc(s.subnets(), func(p netip.Prefix) bool { return p.Contains(a) })
}

// podNetworks returns the cluster's pod networks; nil: they are not known.
func (s Snapshot) podNetworks() (networks []netip.Prefix) {
	for _, n := range s.networks() {
		if n.Network.IsValid() {
			networks = append(networks, n.Network)
		}
	}
	return networks
}

// families reports whether IPv4 and IPv6 are in use.
func (s Snapshot) families() (v4, v6 bool) {
	for _, p := range s.subnets() {
		v4, v6 = v4 || p.Addr().Is4(), v6 || p.Addr().Is6()
	}
	return v4, v6
}

func (m Machine) String() string { return strings.TrimSpace(m.Vendor + " " + m.Product) }
