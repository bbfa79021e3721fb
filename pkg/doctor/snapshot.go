package doctor

import (
	"net/netip"
	"strings"
	"time"

	"flannel/pkg/status"
	"flannel/pkg/underlay"
	"flannel/subnet"
)

// Fact is something that was looked for. The zero Fact was not.
type Fact[T any] struct {
	Value  T      `json:"value"`
	Known  bool   `json:"known"`
	WhyNot string `json:"whyNot,omitempty"` // why it is not known
}

// Known is a fact that was found.
func Known[T any](v T) Fact[T] { return Fact[T]{Value: v, Known: true} }

// Unknown is a fact that could not be found, and why.
func Unknown[T any](why string) Fact[T] { return Fact[T]{WhyNot: why} }

// missing is why a fact is not known, in a sentence for the check that needs it.
func (f Fact[T]) missing() Finding {
	if f.WhyNot == "" {
		return skip("it was not looked at")
	}
	return skip("%s", f.WhyNot)
}

// Snapshot is a node at one moment, as far as it could be seen.
type Snapshot struct {
	OS      string    `json:"os"` // runtime.GOOS
	At      time.Time `json:"at"`
	Version string    `json:"version"` // of the program that looks

	SubnetFile string                  `json:"subnetFile"`
	Env        Fact[subnet.Env]        `json:"env"` // what the subnet file says; the zero Env: there is none
	Daemon     Fact[Answer]            `json:"daemon"`
	Processes  Fact[[]Process]         `json:"processes"` // that may be daemons, in this network namespace
	Interfaces Fact[underlay.Snapshot] `json:"interfaces"`
	CNI        Fact[CNI]               `json:"cni"`
	Machine    Fact[Machine]           `json:"machine"`
	Cluster    Cluster                 `json:"cluster"`
	Linux      Linux                   `json:"linux"`
	Windows    Windows                 `json:"windows"`
}

// Machine is what the firmware says of its maker: of a virtual machine, the hypervisor or cloud.
type Machine struct {
	Vendor  string `json:"vendor"`
	Product string `json:"product"`
}

// Answer is what the daemon says of itself, or how it fails to.
type Answer struct {
	Problem string         `json:"problem,omitempty"` // "" with a report
	Report  *status.Report `json:"report,omitempty"`
}

// Process is a running program.
type Process struct {
	PID  int      `json:"pid"`
	Name string   `json:"name"`
	Args []string `json:"args,omitempty"` // without its name, and without secrets
}

// CNI is what container runtimes find.
type CNI struct {
	ConfDir string          `json:"confDir"`
	Files   []CNIFile       `json:"files"` // in the order in which runtimes look at them
	BinDir  string          `json:"binDir"`
	Plugins map[string]bool `json:"plugins"` // the programs, and whether they can be run; nil: there is no BinDir
}

// CNIFile is a network configuration.
type CNIFile struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// Cluster is what only the store can tell.
type Cluster struct {
	// Ahead is by how much the store's clock is ahead of ours; precise to two seconds.
	Ahead        Fact[time.Duration] `json:"clockAhead"`
	Node         string              `json:"node,omitempty"` // this node's name there; "": not known
	PodCIDRs     Fact[[]string]      `json:"podCIDRs"`
	WindowsNodes Fact[[]string]      `json:"windowsNodes"` // names; at most a few
	// Proxy is the HTTP proxy on the way to the API server, without its password; "": there is none.
	Proxy   Fact[string] `json:"proxy"`
	Unheard string       `json:"unheard,omitempty"` // what came in place of the API server's answer; "": nothing, or it was not asked
	// Services are the networks of Services; asked for only where a check needs them.
	Services Fact[[]netip.Prefix] `json:"serviceNetworks"`
}

// Linux is what only Linux has.
type Linux struct {
	Kernel    string              `json:"kernel"`  // release, "6.1.0-28-amd64"
	Sysctls   Fact[Sysctls]       `json:"sysctls"` // those that matter here
	Devices   Fact[[]Device]      `json:"devices"` // without loopback
	IPTables  Fact[[]Listing]     `json:"iptables"`
	IP6Tables Fact[[]Listing]     `json:"ip6tables"`
	NFTables  Fact[string]        `json:"nftables"`
	Managers  Fact[[]LinkManager] `json:"linkManagers"`
}

// Sysctls are kernel parameters by path ("net/ipv4/ip_forward"); one that is absent is one that the kernel lacks.
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
	TxChecksum  Fact[bool] `json:"txChecksum"`       // it has the checksums of what it sends left to others
	OuterIsIPv6 bool       `json:"outerIsIPv6,omitempty"`
}

// Listing is the filter table as one variant of iptables has it: lines of iptables-save, those of kube-proxy's chains
// left out. A packet must pass every variant's.
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

// report is the daemon's, nil where there is none.
func (s Snapshot) report() *status.Report {
	if !s.Daemon.Known {
		return nil
	}
	return s.Daemon.Value.Report
}

// node is what the daemon says of its node, nil where it has none.
func (s Snapshot) node() *status.Node {
	if r := s.report(); r != nil {
		return r.Node
	}
	return nil
}

// tunnels are our tunnel devices: by the daemon's word, or else by their names.
func (s Snapshot) tunnels() []Device {
	var all []Device
	n := s.node()
	for _, d := range s.Linux.Devices.Value {
		ours := strings.HasPrefix(d.Name, "flannel.") || strings.HasPrefix(d.Name, "flannel-v6.")
		if n != nil {
			ours = false
			for _, known := range n.Devices {
				ours = ours || known.Name == d.Name && d.Name != n.Underlay.Name
			}
		}
		if ours && d.Type == "vxlan" {
			all = append(all, d)
		}
	}
	return all
}

func (s Snapshot) device(index int) (Device, bool) {
	for _, d := range s.Linux.Devices.Value {
		if d.Index == index {
			return d, true
		}
	}
	return Device{}, false
}

// families tells which are in use, by the daemon's word, or else by the subnet file's.
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
