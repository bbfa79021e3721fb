package doctor

import (
	"cmp"
	"net/netip"
	"strings"
	"time"

	"flannel/pkg/status"
	"flannel/pkg/underlay"
	"flannel/subnet"
)

// Fact is a value that package probe may have read. The zero Fact means that
// probe did not try to read it.
type Fact[T any] struct {
	Value  T      `json:"value"`
	Known  bool   `json:"known"`
	WhyNot string `json:"whyNot,omitempty"` // why reading failed; "" if Known, or not tried
}

// Known returns a Fact with a value.
func Known[T any](v T) Fact[T] { return Fact[T]{Value: v, Known: true} }

// Unknown returns a Fact that could not be read, with the reason.
func Unknown[T any](why string) Fact[T] { return Fact[T]{WhyNot: why} }

// missing returns the Finding of a check that needs a Fact which is not known.
func (f Fact[T]) missing() Finding {
	return skip("%s", cmp.Or(f.WhyNot, notExamined))
}

// Reasons for skipping a check.
const (
	notExamined = "not examined"
	noFamilies  = "the address families in use are not known: there is neither a lease nor a subnet file"
	noTunnel    = "flanneld has no VXLAN device"
	noSubnet    = "this node's subnet is not known"
	noBridge    = "the pods' bridge does not exist"
	noConf      = "no CNI configuration calls flannel"
	noHNS       = "flanneld has no HNS network"
	noHostGW    = "flanneld has no host-gw network"
	noAdapter   = "the adapter with the host's address is not known: the daemon has no lease or does not answer"
	noPeers     = "the daemon does not know the peers, or does not answer"
)

// Snapshot is the state of a node at one time, as far as it could be read.
type Snapshot struct {
	OS      string    `json:"os"` // runtime.GOOS
	At      time.Time `json:"at"`
	Version string    `json:"version"` // of the program that made the Snapshot

	SubnetFile string                  `json:"subnetFile"`
	Env        Fact[subnet.Env]        `json:"env"` // the content of the subnet file; zero: the file does not exist
	Daemon     Fact[Answer]            `json:"daemon"`
	Processes  Fact[[]Process]         `json:"processes"` // that may be daemons, in this network namespace
	Interfaces Fact[underlay.Snapshot] `json:"interfaces"`
	CNI        Fact[CNI]               `json:"cni"`
	Machine    Fact[Machine]           `json:"machine"`
	Cluster    Cluster                 `json:"cluster"`
	Linux      Linux                   `json:"linux"`
	Windows    Windows                 `json:"windows"`
}

// Machine is the vendor and product in the firmware: on a virtual machine,
// those of the hypervisor or cloud.
type Machine struct {
	Vendor  string `json:"vendor"`
	Product string `json:"product"`
}

// Answer is the daemon's status report, or why there is none.
type Answer struct {
	Problem string         `json:"problem,omitempty"` // why Report is nil; else ""
	Report  *status.Report `json:"report,omitempty"`
}

// Process is a running program.
type Process struct {
	PID  int      `json:"pid"`
	Name string   `json:"name"`
	Args []string `json:"args,omitempty"` // without its name, and without secrets
}

// CNI is the CNI configuration and the plugins that container runtimes use.
type CNI struct {
	ConfDir string          `json:"confDir"`
	Files   []CNIFile       `json:"files"` // in the order in which runtimes look at them
	BinDir  string          `json:"binDir"`
	Plugins map[string]bool `json:"plugins"` // by program name, whether it is executable; nil: BinDir does not exist
}

// CNIFile is a CNI network configuration.
type CNIFile struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// Cluster is what was read from the store of leases.
type Cluster struct {
	// Ahead is the store's time minus this node's, with an error of up to two
	// seconds.
	Ahead        Fact[time.Duration] `json:"clockAhead"`
	Node         string              `json:"node,omitempty"` // this node's name there; "": not known
	PodCIDRs     Fact[[]string]      `json:"podCIDRs"`
	WindowsNodes Fact[[]string]      `json:"windowsNodes"` // names; only the first few
	// Proxy is the URL of the HTTP proxy for requests to the API server,
	// without its password; "": there is none.
	Proxy Fact[string] `json:"proxy"`
	// Unreachable is the error, or the proxy's answer, instead of the API
	// server's; "": it answered, or was not asked.
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
	NFTables  Fact[string]        `json:"nftables"`
	Managers  Fact[[]LinkManager] `json:"linkManagers"`
}

// Sysctls maps the paths of kernel parameters ("net/ipv4/ip_forward") to their
// values. The kernel lacks the others.
type Sysctls map[string]string

// Device is a network device.
type Device struct {
	Name        string     `json:"name"`
	Index       int        `json:"index"`
	Type        string     `json:"type"` // "vxlan", "bridge", "veth", …
	MTU         int        `json:"mtu"`  // bytes
	Master      int        `json:"master,omitempty"`
	VNI         int        `json:"vni,omitempty"`
	Port        int        `json:"port,omitempty"`   // UDP
	Parent      int        `json:"parent,omitempty"` // index of the device beneath a tunnel
	Driver      string     `json:"driver,omitempty"` // of hardware
	TxChecksum  Fact[bool] `json:"txChecksum"`       // checksum offload is on: the device below computes the checksums
	OuterIsIPv6 bool       `json:"outerIsIPv6,omitempty"`
}

// Listing is the filter table of one variant of iptables (legacy or nft), as
// lines of iptables-save without kube-proxy's chains. A packet must pass the
// tables of all variants.
type Listing struct {
	Variant string   `json:"variant"`
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
		isOurs := strings.HasPrefix(d.Name, "flannel.") || strings.HasPrefix(d.Name, "flannel-v6.")
		if n != nil {
			isOurs = false
			for _, reported := range n.Devices {
				isOurs = isOurs || reported.Name == d.Name && d.Name != n.Underlay.Name
			}
		}
		if isOurs && d.Type == "vxlan" {
			tunnels = append(tunnels, d)
		}
	}
	return tunnels
}

func (s Snapshot) device(index int) (Device, bool) {
	for _, d := range s.Linux.Devices.Value {
		if d.Index == index {
			return d, true
		}
	}
	return Device{}, false
}

// families reports whether IPv4 and IPv6 are in use, by the daemon's report, or
// without one by the subnet file.
func (s Snapshot) families() (v4, v6 bool) {
	if n := s.node(); n != nil {
		for _, net := range n.Networks {
			v4, v6 = v4 || net.Subnet.Addr().Is4(), v6 || net.Subnet.Addr().Is6()
		}
		return v4, v6
	}
	return s.Env.Value.V4Subnet.IsValid(), s.Env.Value.V6Subnet.IsValid()
}

func (m Machine) String() string { return strings.TrimSpace(m.Vendor + " " + m.Product) }
