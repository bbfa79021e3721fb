package doctor

import (
	"bytes"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"flannel/internal/test/logtest"
	"flannel/pkg/dataplane"
	"flannel/pkg/doctor/ruleset"
	"flannel/pkg/status"
	"flannel/pkg/underlay"
	"flannel/subnet"
)

var update = flag.Bool("update", false, "update the golden files")

var (
	pfx  = netip.MustParsePrefix
	addr = netip.MustParseAddr
	noon = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
)

const conflist = `{"name":"cbr0","cniVersion":"1.0.0","plugins":[{"type":"flannel","delegate":{"isDefaultGateway":true}},{"type":"portmap"}]}`

// healthy returns a Linux node without problems. Each test case changes one
// thing.
func healthy() Snapshot {
	return Snapshot{
		OS: "linux", At: noon, SubnetFile: "/run/flannel/subnet.env",
		Env: Known(subnet.Env{V4Network: pfx("10.5.0.0/16"), V4Subnet: pfx("10.5.3.0/24"), MTU: 1450}),
		Daemon: Known(Answer{Report: &status.Report{Ready: true, Since: noon, Store: "etcd", PeersKnown: true, Guard: &dataplane.GuardReport{},
			Peers: []status.Peer{{Name: "a", State: status.UpToDate, Subnets: []netip.Prefix{pfx("10.5.4.0/24")}, PublicIPs: []netip.Addr{addr("192.168.0.4")}}},
			Node: &status.Node{Backend: "vxlan", MTU: 1450, SubnetFile: "/run/flannel/subnet.env",
				Networks: []status.Network{{Network: pfx("10.5.0.0/16"), Subnet: pfx("10.5.3.0/24"), PublicIP: addr("192.168.0.3")}},
				Underlay: status.Underlay{Name: "eth0", Index: 2, MTU: 1500},
				Devices:  []status.Device{{Name: "eth0", Index: 2}, {Name: "flannel.1", Index: 7}}}}}),
		Processes: Known([]Process{{PID: 42, Name: "flanneld"}}),
		Interfaces: Known(underlay.Snapshot{Interfaces: []underlay.Interface{{Name: "eth0", Index: 2, MTU: 1500},
			{Name: "cni0", Index: 9, MTU: 1450, Addrs: []underlay.Addr{{IP: addr("10.5.3.1")}, {IP: addr("fe80::1")}}}}}),
		CNI: Known(CNI{ConfDir: "/etc/cni/net.d", BinDir: "/opt/cni/bin", Files: []CNIFile{{"10-flannel.conflist", conflist}, {"99-other.conf", "{}"}},
			Plugins: map[string]bool{"flannel": true, "bridge": true, "host-local": true, "portmap": true}}),
		Cluster: Cluster{Ahead: Known(time.Second), PodCIDRs: Known([]string{"10.5.3.0/24"}), WindowsNodes: Known[[]string](nil), Proxy: Known("")},
		Linux: Linux{Kernel: "6.1.0-28-amd64",
			Sysctls: Known(Sysctls{"net/ipv4/ip_forward": "1", "net/bridge/bridge-nf-call-iptables": "1"}),
			Devices: Known([]Device{{Name: "eth0", Index: 2, Type: "device", MTU: 1500, Driver: "virtio_net"},
				{Name: "flannel.1", Index: 7, Type: "vxlan", MTU: 1450, VNI: 1, Port: 8472, Parent: 2, TxChecksum: Known(true)},
				{Name: "cni0", Index: 9, Type: "bridge", MTU: 1450}, {Name: "veth1", Index: 10, Type: "veth", MTU: 1450, Master: 9}}),
			IPTables: Known([]Listing{{ruleset.VariantNFT, strings.Split("*filter\n:INPUT ACCEPT [0:0]\n:FORWARD DROP [0:0]\n:FLANNEL-FWD - [0:0]\n"+
				"-A FORWARD -m comment --comment \"flanneld forward\" -j FLANNEL-FWD\n-A FLANNEL-FWD -s 10.5.0.0/16 -j ACCEPT\n-A FLANNEL-FWD -d 10.5.0.0/16 -j ACCEPT", "\n")}}),
			Paths:    Known([]Path{working()}),
			Reserved: Known([]netip.Addr{addr("10.5.3.2")}),
			NFTables: Known(`{"nftables":[]}`), Managers: Known([]LinkManager{{Name: "NetworkManager", Running: true, Manages: []string{"eth0"}}})},
	}
}

// rules replaces the rules of iptables' table filter.
func (s *Snapshot) rules(lines ...string) {
	s.Linux.IPTables = Known([]Listing{{ruleset.VariantNFT, append([]string{"*filter"}, lines...)}})
}

// files replaces the CNI configurations.
func (s *Snapshot) files(files ...CNIFile) { s.CNI.Value.Files = files }

// changeDevice changes one device.
func (s *Snapshot) changeDevice(name string, change func(*Device)) {
	devices := slices.Clone(s.Linux.Devices.Value)
	for i := range devices {
		if devices[i].Name == name {
			change(&devices[i])
		}
	}
	s.Linux.Devices.Value = devices
}

// instances replaces the daemons by some with these subnet files, and PIDs from 42 on.
func (s *Snapshot) instances(subnetFiles ...string) {
	s.Processes.Value = nil
	for i, file := range subnetFiles {
		s.Processes.Value = append(s.Processes.Value, Process{PID: 42 + i, Name: "flanneld", SubnetFile: file})
	}
}

// tunnel replaces the VXLAN device by one of another type.
func (s *Snapshot) tunnel(name, kind string) {
	reportOf(s).Node.Devices[1].Name = name
	s.changeDevice("flannel.1", func(d *Device) { d.Name, d.Type = name, kind })
}

func find(t *testing.T, results []Result, code string) Result {
	t.Helper()
	i := slices.IndexFunc(results, func(r Result) bool { return r.Code == code })
	if i < 0 {
		t.Fatalf("there is no check %s", code)
	}
	return results[i]
}

// TestHealthy checks that on a healthy node all checks are ok, and that without
// any facts all checks are skipped.
func TestHealthy(t *testing.T) {
	for _, r := range Examine(healthy()) {
		want := OK
		if strings.HasPrefix(r.Code, "FL5") || slices.Contains([]string{"FL107", "FL109", "FL209", "FL210"}, r.Code) { // for Windows; always skipped; for udp; for WireGuard; for IPsec
			want = Skipped
		}
		if r.Verdict != want || r.Fix != "" || r.Seen == "" {
			t.Errorf("%s: %s, %q", r.Code, r.Verdict, r.Seen)
		}
	}
	for _, os := range anySystem {
		for _, r := range Examine(Snapshot{OS: os}) {
			if r.Verdict != Skipped || r.Seen == "" {
				t.Errorf("%s without facts on %s: %s, %q", r.Code, os, r.Verdict, r.Seen)
			}
		}
	}
}

// testCase is the expected result of one check after a change of a healthy
// node.
type testCase struct {
	code    string
	verdict Verdict
	seen    string // words that Finding.Seen must contain
	change  func(*Snapshot)
}

func checkAll(t *testing.T, healthy func() Snapshot, cases []testCase) {
	t.Helper()
	for _, c := range cases {
		s := healthy()
		c.change(&s)
		check(t, s, c.code, c.verdict, c.seen)
	}
}

func reportOf(s *Snapshot) *status.Report { return s.Daemon.Value.Report }

func TestDaemonChecks(t *testing.T) {
	checkAll(t, healthy, []testCase{
		{"FL101", Fail, "", func(s *Snapshot) { s.Daemon = Known(Answer{Problem: "x was left behind"}) }},
		{"FL101", Fail, "2026-05-01 12:00:00Z", func(s *Snapshot) {
			reportOf(s).Ready, reportOf(s).Problem = false, "devices: no\nfirewall: no"
		}},
		{"FL101", Undecided, "root", func(s *Snapshot) { s.Daemon = Unknown[Answer]("run this as root") }},
		{"FL102", Fail, "flanneld 42 flanneld-amd64 43", func(s *Snapshot) {
			s.Processes.Value = append(s.Processes.Value, Process{PID: 43, Name: "flanneld-amd64"})
		}},
		{"FL102", OK, "", func(s *Snapshot) { s.Processes.Value = nil }},
		{"FL102", OK, "flanneld 42 denied", func(s *Snapshot) { s.Processes.Value[0].WhyNot = "denied" }},
		{"FL102", Undecided, "flanneld 43 denied", func(s *Snapshot) {
			s.Processes.Value = append(s.Processes.Value, Process{PID: 43, Name: "flanneld", WhyNot: "denied"})
		}},
		{"FL102", Undecided, "some denied", func(s *Snapshot) {
			s.Processes.Known, s.Processes.WhyNot, s.Processes.Value[0].WhyNot = false, "some denied", "denied"
		}},
		{"FL102", Fail, "flanneld 42 flanneld 43", func(s *Snapshot) {
			s.Processes = Fact[[]Process]{Value: append(s.Processes.Value, Process{PID: 43, Name: "flanneld"}), WhyNot: "some denied"}
		}},
		{"FL102", Fail, "flanneld 42 flanneld 44", func(s *Snapshot) {
			s.Processes.Value = append(s.Processes.Value, Process{PID: 43, Name: "flanneld", WhyNot: "denied"}, Process{PID: 44, Name: "flanneld"})
		}},
		{"FL102", OK, "flanneld 42 /a 43 /b", func(s *Snapshot) { s.instances("/a", "/b") }},
		{"FL102", Fail, "flanneld 42 44 /a", func(s *Snapshot) { s.instances("/a", "/b", "/a") }},
		{"FL102", OK, "flanneld 42 43 denied", func(s *Snapshot) {
			s.instances("/a", "/b")
			s.Processes.Value[1].WhyNot = "denied"
		}},
		{"FL102", Undecided, "flanneld 44 denied", func(s *Snapshot) {
			s.instances("/a", "/b", "/a")
			s.Processes.Value[2].WhyNot = "denied"
		}},
		{"FL102", Undecided, "flanneld 43 denied", func(s *Snapshot) { // its file is not known
			s.instances("/a", "")
			s.Processes.Value[1].WhyNot = "denied"
		}},
		{"FL102", Undecided, "flanneld 42 43 denied", func(s *Snapshot) {
			s.instances("/a", "/a")
			s.Processes.Value[0].WhyNot, s.Processes.Value[1].WhyNot = "denied", "denied"
		}},
		{"FL103", Fail, "/run/flannel/subnet.env", func(s *Snapshot) { s.Env = Known(subnet.Env{}) }},
		{"FL103", Fail, "FLANNEL_MTU=x", func(s *Snapshot) {
			s.Env, s.EnvMalformed = Unknown[subnet.Env]("FLANNEL_MTU=x: not a whole number"), true
		}},
		{"FL103", Fail, "fd05:0:0:3::/64 IPv6", func(s *Snapshot) { // which the daemon does not have
			s.Env.Value.V6Network, s.Env.Value.V6Subnet = pfx("fd05::/48"), pfx("fd05:0:0:3::/64")
		}},
		{"FL103", Fail, "fd05:0:0:3::/64 IPv6", func(s *Snapshot) {
			reportOf(s).Node.Networks = append(reportOf(s).Node.Networks, status.Network{Network: pfx("fd05::/48"), Subnet: pfx("fd05:0:0:3::/64")})
		}},
		{"FL103", Fail, "10.6.3.0/24 10.6.0.0/16 10.5.3.0/24 10.5.0.0/16", func(s *Snapshot) {
			s.Env.Value.V4Network, s.Env.Value.V4Subnet = pfx("10.6.0.0/16"), pfx("10.6.3.0/24")
		}},
		{"FL103", Fail, "FLANNEL_MTU=1500 1450", func(s *Snapshot) { s.Env.Value.MTU = 1500 }},
		{"FL103", Skipped, "", func(s *Snapshot) { reportOf(s).Node = nil }},
		{"FL103", Skipped, "/x", func(s *Snapshot) { reportOf(s).Node.SubnetFile = "/x" }},
		{"FL104", Warn, "7 8 2", func(s *Snapshot) {
			for range 7 {
				reportOf(s).Peers = append(reportOf(s).Peers, status.Peer{Name: "bad", State: status.Rejected, Reason: "why"})
			}
		}},
		{"FL105", Warn, "etcd", func(s *Snapshot) { reportOf(s).Outage = "etcd does not answer" }},
		{"FL110", Warn, "VNI 7", func(s *Snapshot) { reportOf(s).Pending = "VNI 7 is pending" }},
		{"FL110", Warn, "--config-follow=false", func(s *Snapshot) { reportOf(s).Pending = "it takes effect at the next start (--config-follow=false)" }},
		{"FL110", Fail, "VNI 8", func(s *Snapshot) { reportOf(s).Pending, reportOf(s).Refused = "VNI 8 is refused", true }},
		{"FL110", Skipped, "", func(s *Snapshot) { s.Daemon = Unknown[Answer]("no answer") }},
		{"FL111", Warn, "eth0 tun0", func(s *Snapshot) { reportOf(s).Node.Underlay.AtStart = "tun0" }},
		{"FL111", Skipped, "", func(s *Snapshot) { reportOf(s).Node = nil }},
		{"FL106", Fail, "flannel.1 MTU 1450 50 1400 eth0", func(s *Snapshot) { s.Interfaces.Value.Interfaces[0].MTU = 1400 }},
		{"FL106", Fail, "FLANNEL_MTU 1451 MTU flannel.1 1450", func(s *Snapshot) { s.Env.Value.MTU = 1451 }},
		{"FL106", Fail, "70", func(s *Snapshot) { s.changeDevice("flannel.1", func(d *Device) { d.OuterIsIPv6 = true }) }},
		{"FL106", Fail, "MTU 1600", func(s *Snapshot) { reportOf(s).Node.MTU = 1600; s.Linux.Devices = Known[[]Device](nil) }},

		{"FL108", Warn, "3 2026-05-01 13:00:00Z missing-at-start", func(s *Snapshot) {
			reportOf(s).Retained = &status.Retained{Count: 3, Cause: "missing-at-start", Until: time.Date(2026, 5, 1, 13, 0, 0, 0, time.UTC)}
		}},
		{"FL109", Warn, "7", func(s *Snapshot) {
			reportOf(s).Forwarded = &dataplane.Forwarded{Dropped: map[string]uint64{"foreign": 7, "malformed": 1}}
		}},
		{"FL109", Warn, "8", func(s *Snapshot) {
			reportOf(s).Forwarded = &dataplane.Forwarded{Dropped: map[string]uint64{"malformed": 8}}
		}},
		{"FL109", Undecided, "FL101", func(s *Snapshot) { reportOf(s).Node.Backend = "udp" }},
		{"FL109", OK, "9", func(s *Snapshot) { reportOf(s).Forwarded = &dataplane.Forwarded{Received: dataplane.Flow{Packets: 9}} }},
		{"FL108", Warn, "", func(s *Snapshot) { reportOf(s).Retained = &status.Retained{Own: true} }},

		{"FL211", Warn, "nf_tables", func(s *Snapshot) { reportOf(s).Guard = &dataplane.GuardReport{Problem: "no nf_tables"} }},
		{"FL211", Warn, "192.0.2.7", func(s *Snapshot) { reportOf(s).Guard = &dataplane.GuardReport{Waiting: "192.0.2.7 sends"} }},
		{"FL211", Warn, "5 outsider", func(s *Snapshot) {
			reportOf(s).Guard = &dataplane.GuardReport{Packets: map[string]uint64{"outsider": 5, "pod": 0}}
		}},
		{"FL211", OK, "", func(s *Snapshot) { // of nodes that joined
			reportOf(s).Guard = &dataplane.GuardReport{Packets: map[string]uint64{"outsider": 5}, Joined: map[string]uint64{"outsider": 5}}
		}},
		{"FL211", Warn, "3 outsider", func(s *Snapshot) {
			reportOf(s).Guard = &dataplane.GuardReport{Packets: map[string]uint64{"outsider": 9}, Dropped: map[string]uint64{"outsider": 2}, Joined: map[string]uint64{"outsider": 4}}
		}},
		{"FL211", OK, "6 pod", func(s *Snapshot) {
			reportOf(s).Guard = &dataplane.GuardReport{Enforce: true, Packets: map[string]uint64{"pod": 9}, Dropped: map[string]uint64{"pod": 6}}
		}},
		{"FL211", Warn, "6 192.0.2.7", func(s *Snapshot) {
			reportOf(s).Guard = &dataplane.GuardReport{Enforce: true, Packets: map[string]uint64{"impostor": 6}, Dropped: map[string]uint64{"impostor": 6}, OfPeer: "10.5.2.7 sends from 192.0.2.7"}
		}},
		{"FL211", OK, "none 12 outsider", func(s *Snapshot) { // of the audit before
			reportOf(s).Guard = &dataplane.GuardReport{Enforce: true, Packets: map[string]uint64{"outsider": 12}, OfPeer: "10.5.2.7 sends from 192.0.2.7"}
		}},
		{"FL211", OK, "when the guard enforced: 5 outsider", func(s *Snapshot) { // when it enforced
			reportOf(s).Guard = &dataplane.GuardReport{Packets: map[string]uint64{"outsider": 5}, Dropped: map[string]uint64{"outsider": 5}}
		}},
		{"FL211", OK, "", func(s *Snapshot) { reportOf(s).Guard = &dataplane.GuardReport{Packets: map[string]uint64{"pod": 0}} }},
	})
}

// wireGuarded returns healthy with the backend wireguard.
func wireGuarded() Snapshot {
	s := healthy()
	r := reportOf(&s)
	r.Node.Backend, r.Node.Devices[1].Name = "wireguard", "flannel-wg"
	r.Node.MTU, s.Env.Value.MTU = 1420, 1420
	r.Node.Networks[0].Data = []byte(`{"PublicKey":"x","Port":51820}`)
	r.Peers[0].Tunnels = []dataplane.TunnelReport{{Endpoint: netip.MustParseAddrPort("192.168.0.4:51820"), Handshake: noon, Sent: 7}}
	s.changeDevice("flannel.1", func(d *Device) { *d = Device{Name: "flannel-wg", Index: 7, Type: "wireguard", MTU: 1420} })
	return s
}

// encrypted returns healthy with the backend ipsec, which has no device.
func encrypted() Snapshot {
	s := healthy()
	n := reportOf(&s).Node
	n.Backend, n.Devices = "ipsec", n.Devices[:1]
	reportOf(&s).Peers[0].Tunnels = []dataplane.TunnelReport{{Endpoint: netip.MustParseAddrPort("192.168.0.4:500"), Handshake: time.Now()}}
	s.changeDevice("flannel.1", func(d *Device) { *d = Device{Name: "other", Index: 7, Type: "dummy", MTU: 1500} })
	return s
}

// addPeer adds the peer b, of which no tunnel knows.
func addPeer(s *Snapshot, state status.State) {
	reportOf(s).Peers = append(reportOf(s).Peers, status.Peer{Name: "b", State: state, PublicIPs: []netip.Addr{addr("192.168.0.9")}})
}

func TestSystemChecks(t *testing.T) {
	checkAll(t, healthy, []testCase{
		{"FL201", Fail, "net.ipv4.ip_forward 0", func(s *Snapshot) { s.Linux.Sysctls.Value["net/ipv4/ip_forward"] = "0" }},
		{"FL201", Fail, "net.ipv4.ip_forward 0", func(s *Snapshot) {
			s.Linux.Sysctls = Fact[Sysctls]{Value: Sysctls{"net/ipv4/ip_forward": "0"}, WhyNot: "some denied"}
		}},
		{"FL201", Undecided, "some denied", func(s *Snapshot) { s.Linux.Sysctls = Fact[Sysctls]{WhyNot: "some denied"} }},
		{"FL201", Fail, "net/ipv4/conf/cni0/forwarding 0", func(s *Snapshot) { s.Linux.Sysctls.Value["net/ipv4/conf/cni0/forwarding"] = "0" }},
		{"FL201", Fail, "net/ipv4/conf/eth0/forwarding 0", func(s *Snapshot) { s.Linux.Sysctls.Value["net/ipv4/conf/eth0/forwarding"] = "0" }},
		{"FL201", Fail, "net/ipv4/conf/flannel.1/forwarding 0", func(s *Snapshot) { s.Linux.Sysctls.Value["net/ipv4/conf/flannel.1/forwarding"] = "0" }},
		{"FL201", OK, "", func(s *Snapshot) { s.Linux.Sysctls.Value["net/ipv4/conf/eth9/forwarding"] = "0" }},
		{"FL201", OK, "", func(s *Snapshot) { s.Linux.Sysctls.Value["net/ipv6/conf/cni0/disable_ipv6"] = "1" }},
		{"FL201", Fail, "net/ipv4/conf/eth0/disable_xfrm 1", func(s *Snapshot) {
			reportOf(s).Node.Backend = "ipsec"
			s.Linux.Sysctls.Value["net/ipv4/conf/eth0/disable_xfrm"] = "1"
		}},
		{"FL201", Fail, "net.ipv6.conf.all.forwarding", func(s *Snapshot) {
			reportOf(s).Node.Networks = append(reportOf(s).Node.Networks, status.Network{Subnet: pfx("fd05::/64")})
		}},
		{"FL201", Fail, "ip_forward 0", func(s *Snapshot) {
			s.Daemon = Known(Answer{Problem: "gone"}) // the family is known from the subnet file
			s.Linux.Sysctls.Value["net/ipv4/ip_forward"] = "0"
		}},
		{"FL202", Warn, "br_netfilter", func(s *Snapshot) { delete(s.Linux.Sysctls.Value, "net/bridge/bridge-nf-call-iptables") }},
		{"FL202", Warn, "bridge-nf-call-iptables 0", func(s *Snapshot) { s.Linux.Sysctls.Value["net/bridge/bridge-nf-call-iptables"] = "0" }},
		{"FL202", Skipped, "", func(s *Snapshot) { s.changeDevice("cni0", func(d *Device) { d.Name = "docker0" }) }},

		{"FL205", Warn, "vmxnet3", func(s *Snapshot) { s.changeDevice("eth0", func(d *Device) { d.Driver = "vmxnet3" }) }},
		{"FL205", OK, "", func(s *Snapshot) {
			s.changeDevice("eth0", func(d *Device) { d.Driver = "vmxnet3" })
			s.changeDevice("flannel.1", func(d *Device) { d.TxChecksum = Known(false) })
		}},
		{"FL205", OK, "", func(s *Snapshot) { s.changeDevice("flannel.1", func(d *Device) { d.Parent = 99 }) }},
		{"FL205", Warn, "5.4.0-100-generic", func(s *Snapshot) { s.Linux.Kernel = "5.4.0-100-generic" }},
		{"FL205", OK, "", func(s *Snapshot) { s.Linux.Kernel = "5.14.0-427.el9" }},
		{"FL205", OK, "", func(s *Snapshot) { s.Linux.Kernel = "4.18.0-553.50.1.el8_10.x86_64" }},
		{"FL205", Warn, "4.18.0-147.8.1.el8_1.x86_64", func(s *Snapshot) { s.Linux.Kernel = "4.18.0-147.8.1.el8_1.x86_64" }},
		{"FL205", Warn, "5.4.17-2136.300.7.el8uek.x86_64", func(s *Snapshot) { s.Linux.Kernel = "5.4.17-2136.300.7.el8uek.x86_64" }},
		{"FL205", Warn, "4.18.0-553-generic", func(s *Snapshot) { s.Linux.Kernel = "4.18.0-553-generic" }},
		{"FL205", Undecided, "ioctl", func(s *Snapshot) {
			s.changeDevice("flannel.1", func(d *Device) { d.TxChecksum = Unknown[bool]("no such ioctl") })
		}},
		{"FL206", Warn, "NetworkManager flannel.1", func(s *Snapshot) {
			s.Linux.Managers = Known([]LinkManager{{"NetworkManager", true, []string{"eth0", "flannel.1"}}})
		}},
		{"FL206", Warn, "systemd-networkd cni0", func(s *Snapshot) {
			s.Linux.Managers = Known([]LinkManager{{"systemd-networkd", true, []string{"cni0"}}})
		}},
		{"FL206", Warn, "NetworkManager flannel.1", func(s *Snapshot) {
			s.Linux.Managers = Fact[[]LinkManager]{Value: []LinkManager{{"NetworkManager", true, []string{"flannel.1"}}}, WhyNot: "some denied"}
		}},
		{"FL206", Undecided, "some denied", func(s *Snapshot) {
			s.Linux.Managers = Fact[[]LinkManager]{Value: []LinkManager{{"NetworkManager", false, []string{"flannel.1"}}}, WhyNot: "some denied"}
		}},
		{"FL206", OK, "flannel.1", func(s *Snapshot) {
			s.Linux.Managers = Known([]LinkManager{{"NetworkManager", false, []string{"flannel.1"}}})
		}},
		{"FL208", Warn, "FLANNEL_MTU 1450 cni0 1500 veth1", func(s *Snapshot) {
			s.changeDevice("cni0", func(d *Device) { d.MTU = 1500 })
			s.changeDevice("veth1", func(d *Device) { d.MTU = 1500 })
		}},
		{"FL208", OK, "1450", func(s *Snapshot) { // the last pod is deleted
			s.changeDevice("cni0", func(d *Device) { d.MTU = 1500 })
			s.changeDevice("veth1", func(d *Device) { d.Master = 0 })
		}},
	})
}

func check(t *testing.T, s Snapshot, code string, verdict Verdict, seen string) {
	t.Helper()
	r := find(t, Examine(s), code)
	if r.Verdict != verdict || !logtest.Names(r.Seen, strings.Fields(seen)...) || (r.Fix == "") != (verdict != Fail && verdict != Warn) {
		t.Errorf("%s: %s, %q (fix: %q), want %s, %q", code, r.Verdict, r.Seen, r.Fix, verdict, seen)
	}
}

func TestPrint(t *testing.T) {
	s := healthy()
	s.Daemon = Known(Answer{Problem: "flanneld does not run here\x1b[2J"})
	s.Linux.Sysctls.Value["net/bridge/bridge-nf-call-iptables"] = "0"
	s.Linux.Managers = Unknown[[]LinkManager]("list processes: denied")
	var b bytes.Buffer
	for _, all := range []bool{false, true} {
		fmt.Fprintf(&b, "all: %t\n", all)
		if err := Print(&b, Examine(s), all); err != nil {
			t.Fatal(err)
		}
	}
	if *update {
		if err := os.WriteFile("testdata/print.txt", b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/print.txt")
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), b.String()); d != "" {
		t.Error(d)
	}
}
