package doctor

import (
	"net/netip"
	"strings"
	"testing"

	"flannel/pkg/status"
	"flannel/pkg/underlay"
	"flannel/subnet"
)

const overlayConf = `{"name":"flannel.4096","type":"flannel","capabilities":{"portMappings":true,"dns":true},"delegate":{"type":"win-overlay","policies":[
	{"name":"EndpointPolicy","value":{"Type":"ProviderAddress","Settings":{"ProviderAddress":"192.168.0.3"}}},
	{"name":"EndpointPolicy","value":{"Type":"OutBoundNAT","Settings":{"Exceptions":["10.5.0.0/16","10.96.0.0/12","192.168.0.0/24"]}}}]}}`

// healthyWindows returns a Windows node with an overlay and without problems.
func healthyWindows() Snapshot {
	own := pfx("10.5.3.0/24")
	return Snapshot{
		OS: "windows", SubnetFile: "/run/flannel/subnet.env", At: noon,
		Env: Known(subnet.Env{V4Network: pfx("10.5.0.0/16"), V4Subnet: own, MTU: 1450}),
		Daemon: Known(Answer{Report: &status.Report{Ready: true, Since: noon, Store: "kubernetes", PeersKnown: true,
			Peers: []status.Peer{{Name: "a", State: status.UpToDate, Subnets: []netip.Prefix{pfx("10.5.4.0/24")}, PublicIPs: []netip.Addr{addr("192.168.0.4")}}},
			Node: &status.Node{Backend: "vxlan", MTU: 1450, SubnetFile: "/run/flannel/subnet.env",
				Networks: []status.Network{{Network: pfx("10.5.0.0/16"), Subnet: own, PublicIP: addr("192.168.0.3")}},
				Underlay: status.Underlay{Name: "vEthernet (Ethernet)", Index: 12, MTU: 1500}, Devices: []status.Device{{Name: "flannel.4096"}}}}}),
		Processes: Known([]Process{{PID: 4, Name: "flanneld.exe"}}),
		Interfaces: Known(underlay.Snapshot{Defaults: []underlay.Default{{Index: 12}, {Index: 12, V6: true}},
			Interfaces: []underlay.Interface{{Name: "vEthernet (Ethernet)", Index: 12, MTU: 1500, Addrs: []underlay.Addr{{IP: addr("192.168.0.3")}}}}}),
		CNI: Known(CNI{ConfDir: `C:\etc\cni\net.d`, BinDir: `C:\opt\cni\bin`, Files: []CNIFile{{"10-flannel.conf", overlayConf}},
			Plugins: map[string]bool{"flannel": true, "win-overlay": true, "host-local": true}}),
		Cluster: Cluster{Ahead: Known(clockWarn / 2), PodCIDRs: Known([]string{"10.5.3.0/24"}), Services: Known([]netip.Prefix{pfx("10.96.0.0/12")}), Proxy: Known("")},
		Machine: Known(Machine{"VMware, Inc.", "VMware7,1"}),
		Windows: Windows{HNS: Known(HNS{Major: 13, Minor: 3}),
			Networks: Known([]HNSNetwork{{Name: "nat", Type: "NAT"}, {Name: "flannel.4096", Type: "Overlay", Adapter: "Ethernet", Subnets: []netip.Prefix{own}, VNI: 4096,
				ManagementIP: addr("192.168.0.3"), Remote: []PeerRoute{{pfx("10.5.4.0/24"), addr("192.168.0.4")}}}}),
			Ghosts: Known([]HNSNetwork{}),
			Adapters: Known([]Adapter{{Name: "vEthernet (Ethernet)", Index: 12, Virtual: true, Addrs: []netip.Addr{addr("192.168.0.3")}, DNS: []netip.Addr{addr("192.168.0.1")}},
				{Name: "Ethernet", Index: 5}}),
			KubeProxy: Known([]string{`C:\k\kube-proxy.exe`, "--hostname-override=win1", "--source-vip", "10.5.3.2", "--enable-dsr=true", "--network-name=flannel.4096"}),
			Routes:    Known([]PeerRoute{{pfx("10.5.4.0/24"), addr("192.168.0.4")}, {pfx("169.254.169.254/32"), addr("192.168.0.1")}, {pfx("0.0.0.0/0"), addr("192.168.0.1")}}),
			Programs:  Known([]string{"containerd", "kube-proxy", "kubelet"}), LeftFiles: Known([]string{}), Lost: Known(LostSettings{}), Category: Known(Category{}), LostPods: Known([]string{}),
			Firewall:  Known(WinFirewall{[]FirewallProfile{{Name: "Public", Type: 4, On: true}}, []FirewallRule{{Name: "flanneld VXLAN", Allow: true, Ports: "4789", Profiles: 7}}}),
			SourceVIP: Known(addr("10.5.3.2")), Reserved: Known([]netip.Addr{addr("10.5.3.2"), addr("10.5.3.9")})},
	}
}

// bridged changes healthyWindows to host-gw.
func bridged(s *Snapshot) {
	if n := s.node(); n != nil {
		n.Backend, n.Devices[0].Name = "host-gw", "cbr0"
	}
	net := &s.Windows.Networks.Value[1]
	net.Name, net.Type, net.VNI, net.Remote, net.Endpoint = "cbr0", "L2Bridge", 0, nil, &HNSEndpoint{Forwarding{V4: true}}
	s.Windows.Adapters.Value[0].Forwarding = Forwarding{V4: true}
	s.files(CNIFile{"10-flannel.conf", strings.NewReplacer("flannel.4096", "cbr0", "win-overlay", "win-bridge").Replace(overlayConf)})
	s.Windows.KubeProxy = Known([]string{"kube-proxy", "--hostname-override=win1", "--network-name", "cbr0"})
}

func TestHealthyWindows(t *testing.T) {
	skipped := map[string]string{"FL107": "host-gw", "FL109": "udp", "FL507": "host-gw", "FL512": "VMware, Inc. VMware7,1", "FL519": "host-gw"}
	for _, r := range Examine(healthyWindows()) {
		switch linuxOnly := strings.HasPrefix(r.Code, "FL2") || strings.HasPrefix(r.Code, "FL6") || r.Code == "FL403"; {
		case linuxOnly:
			if r.Verdict != Skipped || r.Seen == "" {
				t.Errorf("%s: %s, %q", r.Code, r.Verdict, r.Seen)
			}
		case skipped[r.Code] != "":
			if r.Verdict != Skipped || !strings.Contains(r.Seen, skipped[r.Code]) {
				t.Errorf("%s: %s, %q", r.Code, r.Verdict, r.Seen)
			}
		case r.Verdict != OK:
			t.Errorf("%s: %s, %q", r.Code, r.Verdict, r.Seen)
		}
	}
	s := healthyWindows()
	bridged(&s)
	for _, code := range []string{"FL502", "FL503", "FL507", "FL511", "FL515", "FL516", "FL518", "FL519"} {
		check(t, s, code, OK, "")
	}
	check(t, s, "FL505", Skipped, "")
	check(t, s, "FL506", Skipped, "")
	check(t, s, "FL509", Skipped, "")
	check(t, s, "FL520", Skipped, "")
}

// TestRetainedPeers checks that the entries of a peer whose lease the store lost
// count as wanted, but not those of a rejected peer.
func TestRetainedPeers(t *testing.T) {
	for code, change := range map[string]func(*Snapshot){"FL506": func(*Snapshot) {}, "FL519": bridged} {
		s := healthyWindows()
		change(&s)
		peer := &reportOf(&s).Peers[0]
		peer.State = status.RetainedPeer
		check(t, s, code, OK, "1")
		peer.State = status.Rejected
		check(t, s, code, Fail, "0 1")
		peer.State, peer.PublicIPs = status.RetainedPeer, []netip.Addr{addr("192.168.0.9")}
		check(t, s, code, Fail, "1 1")
	}
}

func networkOf(s *Snapshot) *HNSNetwork { return &s.Windows.Networks.Value[1] }

func withLoopback(s *Snapshot) {
	s.files(CNIFile{"10-flannel.conf", strings.Replace(overlayConf, `"policies"`, `"loopbackDSR":true,"policies"`, 1)})
}

func runsKubeProxy(s *Snapshot, args ...string) {
	s.Windows.KubeProxy = Known(append([]string{"kube-proxy.exe"}, args...))
}

func TestHNSChecks(t *testing.T) {
	checkAll(t, healthyWindows, []testCase{
		{"FL501", Fail, "", func(s *Snapshot) { s.Windows.HNS.Value = HNS{Problem: "no answer in time"} }},
		{"FL501", Warn, "HNS 9.1 9.2", func(s *Snapshot) { s.Windows.HNS.Value = HNS{"", 9, 1} }},
		{"FL501", Warn, "flanneld", func(s *Snapshot) {
			s.Windows.HNS.Value = HNS{"", 9, 1}
			s.Daemon.Value.Report, s.Windows.Networks = nil, Known[[]HNSNetwork](nil)
		}},
		{"FL501", Warn, "IPv6", func(s *Snapshot) {
			n := s.Daemon.Value.Report.Node
			n.Networks = append(n.Networks, status.Network{Subnet: pfx("fd05::/64")})
		}},
		{"FL501", Warn, "HNS 10.2 IPv6", func(s *Snapshot) {
			bridged(s)
			s.Windows.HNS.Value = HNS{"", 10, 2}
			n := s.Daemon.Value.Report.Node
			n.Networks = append(n.Networks, status.Network{Subnet: pfx("fd05::/64")})
		}},
		{"FL502", Fail, "HNS 1", func(s *Snapshot) { s.Windows.Networks.Value = s.Windows.Networks.Value[:1] }},
		{"FL502", Fail, "L2Bridge Overlay", func(s *Snapshot) { networkOf(s).Type = "L2Bridge" }},
		{"FL502", Fail, "10.5.9.0/24 10.5.3.0/24", func(s *Snapshot) { networkOf(s).Subnets = []netip.Prefix{pfx("10.5.9.0/24")} }},
		{"FL503", Fail, "", func(s *Snapshot) { networkOf(s).ManagementIP = netip.Addr{} }},
		{"FL503", Fail, "169.254.3.4 Windows", func(s *Snapshot) { networkOf(s).ManagementIP = addr("169.254.3.4") }},
		{"FL503", Fail, "192.168.0.9", func(s *Snapshot) { networkOf(s).ManagementIP = addr("192.168.0.9") }},
		{"FL504", Warn, "DNS", func(s *Snapshot) { s.Windows.Adapters.Value[0].DNS = nil }},
		{"FL504", Warn, "IPv4", func(s *Snapshot) { s.Interfaces.Value.Defaults = s.Interfaces.Value.Defaults[1:] }},
		{"FL504", Warn, "2 IPv4", func(s *Snapshot) {
			s.Interfaces.Value.Defaults = append(s.Interfaces.Value.Defaults, underlay.Default{Index: 3})
		}},
		{"FL505", Fail, "VNI 1", func(s *Snapshot) { networkOf(s).VNI = 1 }},
		{"FL505", Warn, "65535", func(s *Snapshot) { networkOf(s).VNI = 1 << 16 }},
		{"FL506", Fail, "1", func(s *Snapshot) { networkOf(s).Remote[0].Provider = addr("192.168.0.5") }},
		{"FL506", Fail, "0 1", func(s *Snapshot) {
			networkOf(s).Remote = append(networkOf(s).Remote, PeerRoute{pfx("10.5.7.0/24"), addr("192.168.0.7")})
		}},
		{"FL507", Fail, "", func(s *Snapshot) { bridged(s); networkOf(s).Endpoint = nil }},
		{"FL502", OK, "", func(s *Snapshot) { // an overlay has only IPv4
			n := s.Daemon.Value.Report.Node
			n.Networks = append(n.Networks, status.Network{Subnet: pfx("fd05::/64")})
		}},
		{"FL502", Fail, "10.5.3.0/24 fd05::/64", func(s *Snapshot) {
			bridged(s)
			n := s.Daemon.Value.Report.Node
			n.Networks = append(n.Networks, status.Network{Subnet: pfx("fd05::/64")})
		}},
		{"FL504", OK, "", func(s *Snapshot) {
			s.Windows.Adapters.Value = append(s.Windows.Adapters.Value, Adapter{Name: "vEthernet (cbr0_ep)", Index: 20})
			s.Interfaces.Value.Defaults = append(s.Interfaces.Value.Defaults, underlay.Default{Index: 20})
		}},
		{"FL507", Fail, "vEthernet Ethernet", func(s *Snapshot) { bridged(s); s.Windows.Adapters.Value[0].Forwarding.V4 = false }},
		{"FL507", Fail, "", func(s *Snapshot) {
			bridged(s)
			n := s.Daemon.Value.Report.Node
			n.Networks = append(n.Networks, status.Network{Subnet: pfx("fd05::/64")})
		}},
		{"FL507", Fail, "", func(s *Snapshot) { bridged(s); networkOf(s).Endpoint.Forwarding.V4 = false }},
	})
}

func TestKubeProxyChecks(t *testing.T) {
	checkAll(t, healthyWindows, []testCase{
		{"FL508", Fail, "", func(s *Snapshot) { runsKubeProxy(s) }},
		{"FL508", Skipped, `c:\k\conf`, func(s *Snapshot) { runsKubeProxy(s, `--config=c:\k\conf`) }},
		{"FL508", Skipped, "", func(s *Snapshot) { s.Windows.KubeProxy = Known[[]string](nil) }},
		{"FL509", Fail, "--source-vip", func(s *Snapshot) { runsKubeProxy(s, "--hostname-override=x") }},
		{"FL509", Fail, "10.5.9.2 10.5.3.0/24", func(s *Snapshot) { runsKubeProxy(s, "--source-vip=10.5.9.2") }},
		{"FL509", Fail, "10.5.3.7", func(s *Snapshot) { s.Windows.SourceVIP = Known(addr("10.5.3.7")) }},
		{"FL509", Fail, "", func(s *Snapshot) {
			s.Windows.SourceVIP, s.Windows.Reserved = Known(netip.Addr{}), Known([]netip.Addr{addr("10.5.3.9")})
		}},
		{"FL509", OK, "10.5.3.2", func(s *Snapshot) { s.Windows.SourceVIP = Known(netip.Addr{}) }},
		{"FL510", Fail, "HNS 10.1", func(s *Snapshot) { s.Windows.HNS.Value = HNS{"", 10, 1} }},
		{"FL510", Skipped, `c:\k\conf`, func(s *Snapshot) { s.Windows.HNS.Value = HNS{"", 10, 1}; runsKubeProxy(s, `--config=c:\k\conf`) }},
		{"FL510", Undecided, "", func(s *Snapshot) { s.Windows.HNS.Value = HNS{Problem: "no answer"} }},
		{"FL510", OK, "", func(s *Snapshot) { s.Windows.HNS.Value = HNS{"", 9, 3} }},
		{"FL510", Warn, "loopbackDSR", func(s *Snapshot) { withLoopback(s); runsKubeProxy(s) }},
		{"FL510", Warn, "loopbackDSR", func(s *Snapshot) { withLoopback(s); runsKubeProxy(s, "--enable-dsr=false") }},
		{"FL510", OK, "", func(s *Snapshot) { withLoopback(s); runsKubeProxy(s, `--config=c:\k\conf`) }},
		{"FL510", OK, "", withLoopback},
		{"FL511", Fail, "10.5.0.0/16 192.168.0.0/24 10.96.0.0/12", func(s *Snapshot) {
			s.files(CNIFile{"10-flannel.conf", strings.Replace(overlayConf, `"10.96.0.0/12",`, "", 1)})
		}},
		{"FL511", OK, "", func(s *Snapshot) {
			s.Cluster.Services = Unknown[[]netip.Prefix]("it may not ask")
			s.files(CNIFile{"10-flannel.conf", strings.Replace(overlayConf, `"10.96.0.0/12",`, "", 1)})
		}},
		{"FL511", OK, "", func(s *Snapshot) { s.Cluster.Services = Known([]netip.Prefix{pfx("10.96.0.0/12"), pfx("fd09::/112")}) }},
		{"FL511", OK, "loopbackDSR pod-nat-refused", func(s *Snapshot) { runsKubeProxy(s, "--enable-dsr=true") }},
		{"FL302", Fail, `C:\opt\cni\bin`, func(s *Snapshot) { s.CNI.Value.Plugins = nil }},
		{"FL302", OK, "flannel, win-overlay, host-local", func(s *Snapshot) { // the plugin ignores it
			s.files(CNIFile{"10-flannel.conf", `{"name":"flannel.4096","type":"flannel","ipam":{"type":"dhcp"},"delegate":{"type":"win-overlay"}}`})
		}},
		{"FL301", Warn, `C:\etc\cni\net.d`, func(s *Snapshot) { s.files() }},
		{"FL511", Fail, "", func(s *Snapshot) {
			s.files(CNIFile{"10-flannel.conf", strings.Replace(overlayConf, `"10.96.0.0/12"`, `"0.0.0.0/0"`, 1)})
		}},
		{"FL511", OK, "", func(s *Snapshot) {
			s.files(CNIFile{"10-flannel.conf", strings.NewReplacer(`"Settings":{"Exceptions"`, `"ExceptionList"`, `]}}}]}}`, `]}}]}}`).Replace(overlayConf)})
		}},
		{"FL511", Fail, "Exceptions", func(s *Snapshot) {
			s.files(CNIFile{"10-flannel.conf", strings.Replace(overlayConf, `"10.96.0.0/12"`, `"10.96"`, 1)})
		}},
	})
}

// TestWindowsWithoutDaemon checks that the doctor works without the daemon's
// report, by the subnet file.
func TestWindowsWithoutDaemon(t *testing.T) {
	stopped := func(change func(*Snapshot)) Snapshot {
		s := healthyWindows()
		s.Daemon = Known(Answer{Problem: "flanneld does not run here"})
		change(&s)
		return s
	}
	old := HNSNetwork{Name: "flannel.4097", Type: "Overlay", Subnets: []netip.Prefix{pfx("10.5.9.0/24")}}
	s := stopped(func(s *Snapshot) { s.Windows.Networks.Value = append([]HNSNetwork{old}, s.Windows.Networks.Value...) })
	for _, code := range []string{"FL501", "FL502", "FL503", "FL504", "FL505", "FL508", "FL509", "FL510", "FL511"} {
		check(t, s, code, OK, "")
	}
	check(t, s, "FL101", Fail, "")
	check(t, s, "FL506", Skipped, "")
	check(t, stopped(func(s *Snapshot) { s.Windows.Networks = Known([]HNSNetwork{old}) }), "FL502", Fail, "10.5.9.0/24 10.5.3.0/24")
	check(t, stopped(func(s *Snapshot) { s.Windows.Networks = Known([]HNSNetwork{{Name: "nat", Type: "NAT"}}) }), "FL502", Fail, "flannel 1")
	check(t, stopped(func(s *Snapshot) { s.Env = Fact[subnet.Env]{} }), "FL502", Skipped, "")
	check(t, stopped(func(s *Snapshot) { bridged(s) }), "FL507", OK, "")
	check(t, stopped(func(s *Snapshot) { s.Windows.Adapters.Value[0].Addrs = nil }), "FL504", Skipped, "")
}
