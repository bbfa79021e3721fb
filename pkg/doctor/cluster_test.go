package doctor

import (
	"testing"
	"time"

	"flannel/internal/test/logtest"
)

// Packages of distributions install plugins in other directories than the one in which the runtime looks.
func TestMissingPluginsGoWhereTheRuntimeLooks(t *testing.T) {
	s := healthy()
	s.CNI.Value.BinDir, s.CNI.Value.Plugins = "/usr/lib/cni, /opt/other", map[string]bool{}
	if r := find(t, Examine(s), "FL302"); r.Verdict != Fail || !logtest.Names(r.Fix, "into /usr/lib/cni:") {
		t.Errorf("%s: the fix is %q", r.Verdict, r.Fix)
	}
}

func TestClusterChecks(t *testing.T) {
	checkAll(t, healthy, []testCase{
		{"FL301", Warn, "/etc/cni/net.d", func(s *Snapshot) { s.files() }},
		{"FL301", Fail, "05-calico.conflist 10-flannel.conflist", func(s *Snapshot) {
			s.files(CNIFile{"05-calico.conflist", `{"plugins":[{"type":"calico"}]}`}, CNIFile{"10-flannel.conflist", conflist})
		}},
		{"FL301", Fail, "10-flannel.conflist:", func(s *Snapshot) { s.files(CNIFile{"10-flannel.conflist", "{,"}) }},
		{"FL301", Warn, "87-podman.conflist flannel", func(s *Snapshot) { s.files(CNIFile{"87-podman.conflist", `{"plugins":[{"type":"bridge"}]}`}) }},
		{"FL302", Fail, "/opt/cni/bin: flannel host-local", func(s *Snapshot) {
			s.CNI.Value.Plugins = map[string]bool{"bridge": true, "portmap": true, "host-local": false}
		}},
		{"FL302", Skipped, "", func(s *Snapshot) { s.CNI.Value.Plugins = nil }},
		{"FL302", OK, "flannel, bridge, dhcp", func(s *Snapshot) {
			s.files(CNIFile{"10-flannel.conf", `{"type":"flannel","ipam":{"type":"dhcp"}}`})
			s.CNI.Value.Plugins = map[string]bool{"flannel": true, "bridge": true, "dhcp": true}
		}},
		{"FL302", Fail, "dhcp", func(s *Snapshot) { s.files(CNIFile{"10-flannel.conf", `{"type":"flannel","ipam":{"type":"dhcp"}}`}) }},
		{"FL302", OK, "flannel, ptp, host-local", func(s *Snapshot) {
			s.files(CNIFile{"10-flannel.conf", `{"type":"flannel","ipam":{"dataDir":"/x"},"delegate":{"type":"ptp"}}`})
			s.CNI.Value.Plugins["ptp"] = true
		}},
		{"FL302", OK, "flannel, vlan, dhcp, bridge, host-local", func(s *Snapshot) { // beside flannel, with another IPAM
			s.files(CNIFile{"10-flannel.conflist", `{"plugins":[{"type":"vlan","ipam":{"type":"dhcp"}},{"type":"flannel"}]}`})
			s.CNI.Value.Plugins["vlan"], s.CNI.Value.Plugins["dhcp"] = true, true
		}},
		{"FL302", Fail, "delegate.ipam 10-flannel.conf host-local missing", func(s *Snapshot) {
			s.files(CNIFile{"10-flannel.conf", `{"type":"flannel","delegate":{"ipam":{"type":"host-local"}}}`})
			delete(s.CNI.Value.Plugins, "host-local")
		}},
		{"FL302", Fail, "delegate.ipam 10-flannel.conf", func(s *Snapshot) { s.files(CNIFile{"10-flannel.conf", `{"type":"flannel","delegate":{"IPAM":null}}`}) }},
		{"FL302", Fail, "delegate.name 10-flannel.conf", func(s *Snapshot) { s.files(CNIFile{"10-flannel.conf", `{"type":"flannel","delegate":{"name":"x"}}`}) }},
		{"FL302", OK, "flannel, bridge", func(s *Snapshot) { // it is flannel that refuses them
			s.files(CNIFile{"10-flannel.conflist", `{"plugins":[{"type":"flannel"},{"type":"bridge","delegate":{"name":"x","ipam":{}}}]}`})
		}},
		{"FL303", Warn, "/opt/cni bin_dir /etc/containerd/config.toml", func(s *Snapshot) { s.CNI.Value.Problem = "/opt/cni (bin_dir in /etc/containerd/config.toml)" }},

		{"FL401", Fail, "podCIDR", func(s *Snapshot) { s.Cluster.PodCIDRs = Known[[]string](nil) }},
		{"FL402", Warn, "30s", func(s *Snapshot) { s.Cluster.Ahead = Known(-30 * time.Second) }},
		{"FL402", Fail, "1h0m0s", func(s *Snapshot) { s.Cluster.Ahead = Known(time.Hour) }},
		{"FL403", Fail, "flannel.1 VNI 1 8472 Windows win1", func(s *Snapshot) { s.Cluster.WindowsNodes = Known([]string{"win1"}) }},
		{"FL403", OK, "VNI 4096 4789", func(s *Snapshot) {
			s.Cluster.WindowsNodes = Known([]string{"win1"})
			s.changeDevice("flannel.1", func(d *Device) { d.VNI, d.Port = 4096, 4789 })
		}},
		{"FL403", Skipped, "Kubernetes", func(s *Snapshot) {
			s.Cluster.WindowsNodes = Absent[[]string]("only Kubernetes knows")
			reportOf(s).PeersKnown = false
		}},
		{"FL403", OK, "Windows", func(s *Snapshot) { s.Cluster.WindowsNodes = Absent[[]string]("it is etcd") }},
		{"FL403", Fail, "10.5.9.0-24 Windows", func(s *Snapshot) { // only the daemon knows the peers in etcd
			s.Cluster.WindowsNodes = Absent[[]string]("it is etcd")
			reportOf(s).Advice = "10.5.9.0-24 runs Windows, and …"
		}},
		{"FL403", Warn, "DirectRouting", func(s *Snapshot) {
			reportOf(s).Advice = "win1 runs Windows, and …: DirectRouting is on"
			s.changeDevice("flannel.1", func(d *Device) { d.VNI, d.Port = 4096, 4789 })
		}},
		{"FL404", OK, "", func(s *Snapshot) { s.Cluster.Proxy = Known("http://proxy:3128") }},
		{"FL404", Fail, "http://proxy:3128 API 503", func(s *Snapshot) {
			s.Cluster.Proxy, s.Cluster.PodCIDRs, s.Cluster.Unreachable = Known("http://proxy:3128"), Unknown[[]string]("503"), "503"
		}},
		{"FL404", Undecided, "", func(s *Snapshot) {
			s.Cluster.Proxy, s.Cluster.PodCIDRs = Known("http://proxy:3128"), Unknown[[]string]("which node is this?")
		}},
		{"FL107", Skipped, "Amazon EC2 m5.large", func(s *Snapshot) {
			reportOf(s).Node.Backend, s.Machine = "host-gw", Known(Machine{"Amazon EC2", "m5.large"})
		}},
		{"FL107", Skipped, "", func(s *Snapshot) { reportOf(s).Node.Backend = "host-gw" }},
		{"FL107", Skipped, "host-gw", func(*Snapshot) {}},
		{"FL107", Skipped, "", func(s *Snapshot) { s.Daemon = Known(Answer{Problem: "gone"}) }},
	})
}
