package doctor

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"flannel/pkg/status"
	"flannel/pkg/underlay"
)

// inConf replaces a text in the CNI configuration.
func inConf(s *Snapshot, before, after string) {
	s.files(CNIFile{"10-flannel.conf", strings.Replace(s.CNI.Value.Files[0].Text, before, after, 1)})
}

// ownNetwork sets the network of the host's address.
func ownNetwork(s *Snapshot, network string) {
	s.Interfaces.Value.Interfaces[0].Addrs = []underlay.Addr{{IP: addr("192.168.0.3"), Net: pfx(network)}}
}

var vxlan0 = HNSNetwork{Name: "vxlan0", Type: "Overlay", Subnets: []netip.Prefix{pfx("10.5.8.0/24")}}

func TestWindowsNode(t *testing.T) {
	checkAll(t, healthyWindows, []testCase{
		{"FL502", Fail, "vEthernet Ethernet", func(s *Snapshot) { s.Windows.Networks.Value[1].Adapter = "vEthernet (Ethernet)" }},
		{"FL505", OK, "VNI 4096 4790", func(s *Snapshot) { s.Windows.Networks.Value[1].Port = 4790 }},
		{"FL505", Fail, "4790 HNS 10.2 4789", func(s *Snapshot) {
			s.Windows.Networks.Value[1].Port, s.Windows.HNS.Value = 4790, HNS{"", 10, 2}
		}},
		{"FL508", Fail, "win1 Node win1.example", func(s *Snapshot) { s.Cluster.Node = "win1.example" }},
		{"FL508", OK, "win1", func(s *Snapshot) { s.Cluster.Node = "WIN1" }},
		{"FL511", Warn, "192.168.0.0/16", func(s *Snapshot) { bridged(s); ownNetwork(s, "192.168.0.3/16") }},
		{"FL511", OK, "", func(s *Snapshot) { bridged(s); ownNetwork(s, "192.168.0.3/25") }},
		{"FL511", OK, "", func(s *Snapshot) { ownNetwork(s, "192.168.0.3/16") }}, // pods of an overlay reach the nodes by NAT
		{"FL511", OK, "", func(s *Snapshot) { // and have only IPv4
			s.Cluster.Services.Value = append(s.Cluster.Services.Value, pfx("fd00:10:96::/112"))
		}},
		{"FL511", OK, "", func(s *Snapshot) { // the cluster has no IPv6 pod network
			bridged(s)
			s.Cluster.Services.Value = append(s.Cluster.Services.Value, pfx("fd00:10:96::/112"))
		}},
		{"FL511", Fail, "fd00:10:96::/112", func(s *Snapshot) {
			bridged(s)
			s.node().Networks = append(s.node().Networks, status.Network{Network: pfx("fd05::/48"), Subnet: pfx("fd05::/64")})
			s.files(CNIFile{"10-flannel.conf", strings.Replace(s.CNI.Value.Files[0].Text, `"10.5.0.0/16"`, `"10.5.0.0/16","fd05::/48"`, 1)})
			s.Cluster.Services.Value = append(s.Cluster.Services.Value, pfx("fd00:10:96::/112"))
		}},
		{"FL513", Warn, "kubelet containerd", func(s *Snapshot) { s.Windows.Programs = Known([]string{"kube-proxy"}) }},
		{"FL513", OK, "", func(s *Snapshot) { s.Windows.Programs = Known([]string{"dockerd", "kube-proxy", "kubelet"}) }},
		{"FL513", Skipped, "etcd", func(s *Snapshot) { s.report().Store, s.Windows.Programs = "etcd", Known([]string{}) }},
		{"FL514", Warn, `C:\k\SourceVip.json HNS vxlan0 10.5.8.0/24`, func(s *Snapshot) {
			s.Windows.LeftFiles, s.Windows.Networks.Value = Known([]string{`C:\k\SourceVip.json`}), append(s.Windows.Networks.Value, vxlan0)
		}},
		{"FL514", Skipped, "flanneld's", func(s *Snapshot) { // with which to compare the other one
			s.Windows.Networks = Known([]HNSNetwork{vxlan0})
		}},
		{"FL514", OK, "", func(s *Snapshot) {
			s.node().Networks[0].Network = pfx("192.168.0.0/16") // overlaps the dummy subnet of External
			s.Windows.Networks.Value = append(s.Windows.Networks.Value, HNSNetwork{Name: "External", Type: "Overlay", Subnets: []netip.Prefix{pfx("192.168.255.0/30")}})
		}},
	})
}

func TestWindowsCNI(t *testing.T) {
	checkAll(t, healthyWindows, []testCase{
		{"FL515", Fail, "10-flannel.conf vxlan0 flannel.4096", func(s *Snapshot) { inConf(s, "flannel.4096", "vxlan0") }},
		{"FL515", Fail, "win-bridge Overlay", func(s *Snapshot) { inConf(s, "win-overlay", "win-bridge") }},
		{"FL515", Fail, "", func(s *Snapshot) { inConf(s, `"type":"win-overlay",`, "") }},
		{"FL515", Fail, `"192.168.0.9" 192.168.0.3`, func(s *Snapshot) { inConf(s, "192.168.0.3", "192.168.0.9") }},
		{"FL515", OK, "flannel.4096 win-overlay", func(s *Snapshot) {
			s.files(CNIFile{"10-flannel.conflist", `{"name":"flannel.4096","plugins":[` + strings.Replace(overlayConf, `"name":"flannel.4096",`, "", 1) + `]}`})
		}},
		{"FL516", Warn, "DNS kubelet", func(s *Snapshot) { inConf(s, `"dns":true`, `"dns":false`) }},
		{"FL516", OK, "10-flannel.conf", func(s *Snapshot) {
			inConf(s, `"portMappings":true,"dns":true},"delegate":{`, `},"delegate":{"dns":{"Nameservers":["10.96.0.10"]},`)
		}},
		{"FL516", OK, "dnsCapabilities", func(s *Snapshot) { inConf(s, `"dns":true`, `"dnsCapabilities":true`) }},
		{"FL517", Fail, "vEthernet Ethernet 2026-05-01 11:00:00Z 192.168.0.3/24 DNS", func(s *Snapshot) {
			s.Windows.Lost = Known(LostSettings{noon.Add(-time.Hour), "vEthernet (Ethernet)", []string{"address 192.168.0.3/24", "DNS"}})
		}},
		{"FL517", Warn, "DNS", func(s *Snapshot) {
			s.Windows.Lost = Known(LostSettings{noon.Add(-time.Minute), "Ethernet", []string{"DNS"}})
		}},
		{"FL517", OK, "", func(s *Snapshot) { s.Windows.Lost = Known(LostSettings{Since: noon.Add(-time.Hour)}) }},
		{"FL524", OK, "none", func(*Snapshot) {}},
		{"FL524", OK, "vEthernet (Ethernet) Private", func(s *Snapshot) { s.lostCategory("Private", "Private", true, "") }},
		{"FL524", OK, "vEthernet (Ethernet) Public", func(s *Snapshot) { s.lostCategory("Private", "Public", true, "") }},
		{"FL524", Warn, "vEthernet (Ethernet) public Private", func(s *Snapshot) { s.lostCategory("Private", "Public", false, "") }},
		{"FL524", Warn, "vEthernet (Ethernet) Private policy", func(s *Snapshot) { s.lostCategory("Private", "Public", true, "a group policy") }},
		{"FL524", Warn, "vEthernet (Ethernet) DomainAuthenticated", func(s *Snapshot) { s.lostCategory("DomainAuthenticated", "Public", true, "only Windows") }},
		{"FL522", Fail, "2 default/web kube-system/dns", func(s *Snapshot) {
			s.Windows.LostPods = Known([]string{"default/web"})
			s.report().LostPods = []string{"default/web", "kube-system/dns"}
		}},
		{"FL518", Fail, "vxlan0 flannel.4096", func(s *Snapshot) { runsKubeProxy(s, "--network-name", "vxlan0") }},
		{"FL518", Skipped, "KUBE_NETWORK", func(s *Snapshot) { runsKubeProxy(s) }},
		{"FL518", Skipped, "KUBE_NETWORK", func(s *Snapshot) { runsKubeProxy(s, "--network-name=") }},
		{"FL518", Skipped, `c:\k\conf`, func(s *Snapshot) { runsKubeProxy(s, `--config=c:\k\conf`) }},
		{"FL519", Fail, "1", func(s *Snapshot) {
			bridged(s)
			s.Windows.Routes.Value[0].Provider = addr("192.168.0.5")
		}},
		{"FL519", OK, "1", bridged},
		{"FL520", Warn, "Public 4790", func(s *Snapshot) { s.Windows.Networks.Value[1].Port = 4790 }},
		{"FL520", Warn, "Private", func(s *Snapshot) {
			f := &s.Windows.Firewall.Value
			f.Profiles, f.Rules[0].Profiles = append(f.Profiles, FirewallProfile{Name: "Private", Type: 2, On: true}), 4
		}},
		{"FL520", Warn, "Public", func(s *Snapshot) { s.Windows.Firewall.Value.Profiles[0].BlocksAll = true }},
		{"FL520", Warn, "Public", func(s *Snapshot) { s.Windows.Firewall.Value.Rules[0].Limited = true }},
		{"FL520", Warn, "no-vxlan", func(s *Snapshot) { // a rule that blocks takes precedence
			f := &s.Windows.Firewall.Value
			f.Rules = append(f.Rules, FirewallRule{Name: "no-vxlan", Ports: "1-5000", Profiles: 4})
		}},
		{"FL520", OK, "flanneld unread", func(s *Snapshot) { // a rule that cannot be read may block
			s.Windows.Firewall.Value.Rules = append(s.Windows.Firewall.Value.Rules, FirewallRule{Name: "unread", Profiles: 7, Limited: true})
		}},
		{"FL520", OK, "Overlay traffic", func(s *Snapshot) {
			s.Windows.Firewall.Value.Rules = []FirewallRule{{Name: "Overlay traffic", Allow: true, Ports: "RPC, 53,4000-5000", Profiles: 0x7fffffff}}
		}},
		{"FL520", OK, "all", func(s *Snapshot) {
			s.Windows.Firewall.Value.Rules = []FirewallRule{{Name: "all", Allow: true, Ports: "*", Profiles: 4}}
		}},
		{"FL520", OK, "Public", func(s *Snapshot) {
			s.Windows.Firewall.Value = WinFirewall{Profiles: []FirewallProfile{{Name: "Public", Type: 4}}}
		}},
		{"FL520", OK, "Public", func(s *Snapshot) {
			s.Windows.Firewall.Value = WinFirewall{Profiles: []FirewallProfile{{Name: "Public", Type: 4, On: true, Allows: true}}}
		}},
		{"FL520", Undecided, "", func(s *Snapshot) { s.Windows.Firewall.Value.Profiles = nil }},
		{"FL521", Fail, "flannel.4096 Overlay", func(s *Snapshot) {
			s.Windows.Ghosts = Known([]HNSNetwork{{Name: "nat", Type: "NAT"}, {Name: "flannel.4096", Type: "Overlay"}})
		}},
		{"FL521", Fail, "0x803b0010", func(s *Snapshot) {
			s.report().Ready, s.report().Problem = false, "HcnCreateNetwork: already exists (0x803b0010)"
		}},
		{"FL521", OK, "nat", func(s *Snapshot) { s.Windows.Ghosts = Known([]HNSNetwork{{Name: "nat", Type: "NAT"}}) }},
		{"FL521", Undecided, "RPC", func(s *Snapshot) { s.Windows.Ghosts = Unknown[[]HNSNetwork]("RPC") }},
		{"FL520", Undecided, "RPC", func(s *Snapshot) { s.Windows.Firewall = Unknown[WinFirewall]("RPC") }},
		{"FL519", OK, "1", func(s *Snapshot) { bridged(s); s.report().Peers[0].State = status.Behind }}, // FL101 reports it
	})
}

func (s *Snapshot) lostCategory(saved, current string, done bool, problem string) {
	s.Windows.Category = Known(Category{"vEthernet (Ethernet)", current, saved, done, problem})
}
