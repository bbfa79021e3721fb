package doctor

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"flannel/internal/test/logtest"
	"flannel/pkg/dataplane"
	"flannel/pkg/status"
	"flannel/pkg/underlay"
	"flannel/subnet"
)

// nodes returns nodes without problems: together they have a verdict for each check but
// those that are always skipped.
func nodes() map[string]func() Snapshot {
	return map[string]func() Snapshot{
		"vxlan": healthy, "wireguard": wireGuarded, "ipsec": encrypted, "Windows": healthyWindows,
		"udp": func() Snapshot {
			s := healthy()
			r := reportOf(&s)
			r.Node.Backend, r.Node.Devices[1].Name, r.Forwarded = "udp", "flannel0", &dataplane.Forwarded{}
			s.changeDevice("flannel.1", func(d *Device) { *d = Device{Name: "flannel0", Index: 7, Type: "tuntap", MTU: 1450} })
			return s
		},
		"host-gw on Windows": func() Snapshot {
			s := healthyWindows()
			bridged(&s)
			return s
		},
		"Backend.Name on Windows": func() Snapshot {
			s := healthyWindows()
			reportOf(&s).Node.Devices[0].Name, networkOf(&s).Name = "pods", "pods"
			inConf(&s, "flannel.4096", "pods")
			runsKubeProxy(&s, "--hostname-override=win1", "--source-vip=10.5.3.2", "--enable-dsr=true", "--network-name=pods")
			return s
		},
	}
}

// A check that needs the daemon's answer says that there is none, and nothing about what
// the daemon would have said.
func TestWithoutAnswer(t *testing.T) {
	silent, known := map[string]int{}, map[string]bool{}
	for name, node := range nodes() {
		for why, change := range map[string]func(*Snapshot){
			"the daemon does not answer": func(s *Snapshot) { s.Daemon = Known(Answer{Problem: "gone"}) },
			"run this as root":           func(s *Snapshot) { s.Daemon = Unknown[Answer]("run this as root") },
			"the daemon was not asked":   func(s *Snapshot) { s.Daemon = Fact[Answer]{} },
			"the daemon has no lease":    func(s *Snapshot) { reportOf(s).Node = nil },
		} {
			s := node()
			before := Examine(s)
			change(&s)
			for i, r := range Examine(s) {
				decided := before[i].Verdict != Skipped
				known[r.Code] = known[r.Code] || decided
				if !decided || r.Code == "FL101" || r.Verdict != Skipped && r.Verdict != Undecided {
					continue
				}
				if silent[r.Code]++; !strings.Contains(r.Seen, why) {
					t.Errorf("%s, %s: %s is %s, %q, which does not say that %s", name, why, r.Code, r.Verdict, r.Seen, why)
				}
			}
		}
	}
	if len(silent) < 12 || silent["FL109"] == 0 || silent["FL211"] == 0 {
		t.Errorf("too few checks need an answer: %v", silent)
	}
	for _, c := range Checks() {
		if always := c.Code == "FL107" || c.Code == "FL512"; known[c.Code] == always {
			t.Errorf("%s has a verdict: %t", c.Code, known[c.Code])
		}
	}
}

// facts returns the names of the Facts in a value, which may be nested, and functions that
// make them unknown, or with "" known and empty.
func facts(path string, v reflect.Value) map[string]func(why string) {
	all := map[string]func(string){}
	for i := range v.NumField() {
		field, name := v.Field(i), path+v.Type().Field(i).Name
		switch {
		case field.Kind() == reflect.Struct && strings.HasPrefix(field.Type().Name(), "Fact["):
			all[name] = func(why string) {
				field.SetZero()
				field.FieldByName("WhyNot").SetString(why)
				field.FieldByName("Known").SetBool(why == "")
			}
		case name == "Cluster" || name == "Linux" || name == "Windows":
			for nested, unread := range facts(name+".", field) {
				all[nested] = unread
			}
		}
	}
	return all
}

// stillOK has checks that stay ok without a fact that they read. FL511 reads these two for a hint that is
// no part of its verdict.
var stillOK = []string{"FL511 Windows.HNS", "FL511 Windows.KubeProxy"}

// What could not be read is no problem, whether the daemon answers or not. If nothing could
// be read, nothing is right either. A check reads a fact if it finds something else with an empty
// one; it is ok without the fact only if it says so.
func TestUnreadFacts(t *testing.T) {
	for name, node := range nodes() {
		for answer, change := range map[string]func(*Snapshot){
			"with an answer":    func(*Snapshot) {},
			"without an answer": func(s *Snapshot) { s.Daemon = Known(Answer{Problem: "gone"}) },
		} {
			s := node()
			change(&s)
			before := Examine(s)
			names := facts("", reflect.ValueOf(&s).Elem())
			if len(names) < 30 {
				t.Fatalf("only %d facts", len(names))
			}
			for fact := range names {
				s := node()
				change(&s)
				change := facts("", reflect.ValueOf(&s).Elem())[fact]
				change("")
				empty := Examine(s)
				change("unread")
				for i, r := range Examine(s) {
					if (r.Verdict == Fail || r.Verdict == Warn) && before[i].Verdict != r.Verdict {
						t.Errorf("%s %s, but without %s: %s is %s, %q", name, answer, fact, r.Code, r.Verdict, r.Seen)
					}
					reads := !reflect.DeepEqual(empty[i], before[i])
					if r.Verdict == OK && reads && !slices.Contains(stillOK, r.Code+" "+fact) && !strings.Contains(r.Seen, "unread") {
						t.Errorf("%s %s, but without %s: %s reads it and is ok, %q", name, answer, fact, r.Code, r.Seen)
					}
				}
			}
			for _, unread := range names {
				unread("unread")
			}
			for _, r := range Examine(s) {
				if r.Verdict != Skipped && r.Verdict != Undecided {
					t.Errorf("%s without facts: %s is %s, %q", name, r.Code, r.Verdict, r.Seen)
				}
			}
		}
	}
}

// A part that could not be read is no reason to call the rest right, or to hide what is wrong
// with it.
func TestPartlyRead(t *testing.T) {
	gone := func(s *Snapshot) { s.Daemon = Known(Answer{Problem: "gone"}) }
	checkAll(t, healthy, []testCase{
		{"FL103", Undecided, "denied", func(s *Snapshot) { s.Env = Unknown[subnet.Env]("denied") }},
		{"FL106", Undecided, "denied", func(s *Snapshot) { s.Linux.Devices = Unknown[[]Device]("denied") }},
		{"FL201", Undecided, "denied", func(s *Snapshot) { s.Linux.Devices = Unknown[[]Device]("denied") }},
		{"FL201", Undecided, "denied", func(s *Snapshot) { s.Interfaces = Unknown[underlay.Snapshot]("denied") }},
		{"FL201", Fail, "net.ipv4.ip_forward 0", func(s *Snapshot) {
			s.Interfaces = Unknown[underlay.Snapshot]("denied")
			s.Linux.Sysctls.Value["net/ipv4/ip_forward"] = "0"
		}},
		{"FL201", Fail, "net/ipv4/conf/eth0/forwarding 0", func(s *Snapshot) {
			gone(s) // the underlay is known by the tunnel
			s.Linux.Sysctls.Value["net/ipv4/conf/eth0/forwarding"] = "0"
		}},
		{"FL201", OK, "underlay answer", func(s *Snapshot) {
			gone(s)
			s.changeDevice("flannel.1", func(d *Device) { d.Parent = 0 })
		}},
		{"FL202", OK, "", func(s *Snapshot) { s.Linux.Sysctls.Known, s.Linux.Sysctls.WhyNot = false, "denied" }}, // another one
		{"FL202", Undecided, "denied", func(s *Snapshot) {
			s.Linux.Sysctls.Known, s.Linux.Sysctls.WhyNot = false, "denied"
			delete(s.Linux.Sysctls.Value, "net/bridge/bridge-nf-call-iptables")
		}},
		{"FL202", Warn, "bridge-nf-call-ip6tables 0", func(s *Snapshot) {
			reportOf(s).Node.Networks = append(reportOf(s).Node.Networks, status.Network{Subnet: pfx("fd05::/64")})
			s.Linux.Sysctls = Fact[Sysctls]{Value: Sysctls{"net/bridge/bridge-nf-call-ip6tables": "0"}, WhyNot: "denied"}
		}},
		{"FL202", Skipped, "families", func(s *Snapshot) { gone(s); s.Env = Known(subnet.Env{}) }},
		{"FL203", Skipped, "network", func(s *Snapshot) {
			gone(s)
			s.Env.Value.V4Network = netip.Prefix{}
		}},
		{"FL203", Skipped, "network", func(s *Snapshot) { // which is of the other family
			gone(s)
			s.Env.Value.V4Network, s.Env.Value.V6Network = netip.Prefix{}, pfx("fd05::/48")
		}},
		{"FL205", Warn, "flannel-v6.1 5.4.0", func(s *Snapshot) {
			s.Linux.Kernel = "5.4.0"
			s.changeDevice("flannel.1", func(d *Device) { d.TxChecksum = Unknown[bool]("no such ioctl") })
			s.Linux.Devices.Value = append(s.Linux.Devices.Value, Device{Name: "flannel-v6.1", Index: 8, Type: "vxlan", TxChecksum: Known(true)})
			reportOf(s).Node.Devices = append(reportOf(s).Node.Devices, status.Device{Name: "flannel-v6.1"})
		}},
		{"FL205", Skipped, "the daemon does not answer", func(s *Snapshot) { gone(s); s.Linux.Devices.Value = nil }},
		{"FL403", Skipped, "the daemon does not answer", func(s *Snapshot) {
			gone(s)
			s.Linux.Devices.Value, s.Cluster.WindowsNodes = nil, Known([]string{"win1"})
		}},
		{"FL106", OK, "1450", func(s *Snapshot) { // host-gw, which has no tunnel devices
			n := reportOf(s).Node
			n.Backend, n.Devices, s.Linux.Devices = "host-gw", n.Devices[:1], Unknown[[]Device]("denied")
		}},
		{"FL106", OK, "subnet file malformed", func(s *Snapshot) { s.Env, s.EnvMalformed = Unknown[subnet.Env]("x"), true }},
		{"FL207", Fail, "10.5.9.1/24 denied", func(s *Snapshot) { s.onBridge("10.5.9.1/24"); s.Env = Unknown[subnet.Env]("denied") }},
		{"FL208", Skipped, "malformed", func(s *Snapshot) { s.Env, s.EnvMalformed = Unknown[subnet.Env]("x"), true }},
		{"FL208", Skipped, "FLANNEL_MTU", func(s *Snapshot) { s.Env.Value.MTU = 0 }},
		{"FL301", Undecided, "10-flannel.conflist denied", func(s *Snapshot) {
			s.files(CNIFile{"10-flannel.conflist", ""})
			s.CNI.Value.Unread = map[string]string{"10-flannel.conflist": "denied"}
		}},
		{"FL302", Undecided, "bridge denied", func(s *Snapshot) {
			delete(s.CNI.Value.Plugins, "bridge")
			s.CNI.Value.BinDir, s.CNI.Value.Unread = "/opt/cni/bin, /usr/lib/cni", map[string]string{"/usr/lib/cni": "denied"}
		}},
		{"FL302", Undecided, "flannel denied", func(s *Snapshot) {
			s.CNI.Value.Plugins, s.CNI.Value.Unread = nil, map[string]string{s.CNI.Value.BinDir: "denied"}
		}},
		{"FL302", Fail, "flannel executable", func(s *Snapshot) {
			s.CNI.Value.Plugins["flannel"], s.CNI.Value.Unread = false, map[string]string{s.CNI.Value.BinDir: "denied"}
		}},
		{"FL302", OK, "", func(s *Snapshot) { s.CNI.Value.Unread = map[string]string{s.CNI.Value.BinDir: "denied"} }},
		{"FL302", Undecided, "bridge denied", func(s *Snapshot) { // a later directory has another one
			s.CNI.Value.Unread = map[string]string{s.CNI.Value.BinDir + "/bridge": "denied"}
		}},
		{"FL302", Fail, "flannel missing", func(s *Snapshot) {
			delete(s.CNI.Value.Plugins, "flannel")
			s.CNI.Value.Unread = map[string]string{s.CNI.Value.BinDir + "/bridge": "denied"}
		}},
		{"FL302", Skipped, "FL301", func(s *Snapshot) { s.files(CNIFile{"10-flannel.conflist", "{,"}) }},
	})
	checkAll(t, healthyWindows, []testCase{
		{"FL501", Undecided, "RPC", func(s *Snapshot) {
			gone(s)
			s.Windows.HNS.Value = HNS{"", 9, 1}
			s.Windows.Networks = Unknown[[]HNSNetwork]("RPC")
		}},
		{"FL501", OK, "9.1", func(s *Snapshot) { // which host-gw does not mind
			bridged(s)
			s.Windows.HNS.Value, s.Windows.Networks = HNS{"", 9, 1}, Known([]HNSNetwork{})
		}},
		{"FL501", Undecided, "the daemon does not answer vxlan0", func(s *Snapshot) { // by its Backend.Name
			gone(s)
			s.Windows.HNS.Value, s.Windows.Networks = HNS{"", 9, 1}, Known([]HNSNetwork{vxlan0})
		}},
		{"FL501", OK, "HNS 13.3", func(s *Snapshot) { gone(s); s.Windows.Networks = Known([]HNSNetwork{vxlan0}) }}, // whatever it is
		{"FL501", Undecided, "the daemon does not answer vxlan0", func(s *Snapshot) { // an overlay has no IPv6
			gone(s)
			s.Env.Value.V6Network, s.Env.Value.V6Subnet = pfx("fd05::/48"), pfx("fd05::/64")
			s.Windows.Networks = Known([]HNSNetwork{vxlan0})
		}},
		{"FL501", Warn, "HNS 10.2 IPv6", func(s *Snapshot) { // no kind of network has both families
			gone(s)
			s.Env.Value.V6Network, s.Env.Value.V6Subnet = pfx("fd05::/48"), pfx("fd05::/64")
			s.Windows.HNS.Value, s.Windows.Networks = HNS{"", 10, 2}, Unknown[[]HNSNetwork]("RPC")
		}},
		{"FL502", Undecided, "the daemon does not answer vxlan0", func(s *Snapshot) {
			gone(s)
			s.Windows.Networks = Known([]HNSNetwork{{Name: "nat", Type: "NAT"}, vxlan0})
		}},
		{"FL502", Fail, "2", func(s *Snapshot) {
			gone(s)
			s.Windows.Networks = Known([]HNSNetwork{{Name: "nat", Type: "NAT"}, {Name: "External", Type: "L2Bridge"}})
		}},
		{"FL503", Undecided, "denied", func(s *Snapshot) { s.Interfaces = Unknown[underlay.Snapshot]("denied") }},
		{"FL503", Undecided, "denied", func(s *Snapshot) {
			bridged(s)
			networkOf(s).ManagementIP, s.Interfaces = netip.Addr{}, Unknown[underlay.Snapshot]("denied")
		}},
		{"FL503", Fail, "169.254.3.4", func(s *Snapshot) {
			networkOf(s).ManagementIP, s.Interfaces = addr("169.254.3.4"), Unknown[underlay.Snapshot]("denied")
		}},
		{"FL507", Skipped, "families", func(s *Snapshot) { gone(s); bridged(s); s.Env = Known(subnet.Env{}) }},
		{"FL508", OK, "not known", func(s *Snapshot) { s.Cluster.Node = "" }},
		{"FL509", Skipped, "subnet", func(s *Snapshot) { gone(s); s.Env = Known(subnet.Env{}) }},
		{"FL509", OK, "10.5.3.2 denied", func(s *Snapshot) { s.Windows.SourceVIP = Unknown[netip.Addr]("denied") }},
		{"FL510", OK, "loopbackDSR denied", func(s *Snapshot) { runsKubeProxy(s); s.CNI = Unknown[CNI]("denied") }},
		{"FL511", OK, "nodes' network denied", func(s *Snapshot) { bridged(s); s.Interfaces = Unknown[underlay.Snapshot]("denied") }},
		{"FL514", Undecided, "RPC", func(s *Snapshot) { s.Windows.Networks = Unknown[[]HNSNetwork]("RPC") }},
		{"FL514", Skipped, "the daemon does not answer", func(s *Snapshot) { gone(s); s.Windows.Networks = Known([]HNSNetwork{vxlan0}) }},
		{"FL514", Skipped, "pod network", func(s *Snapshot) {
			gone(s)
			s.Env, s.Windows.Networks.Value = Known(subnet.Env{}), append(s.Windows.Networks.Value, vxlan0)
		}},
		{"FL514", OK, "", func(s *Snapshot) { gone(s); s.Windows.Networks.Value = nil }},
		{"FL514", Warn, "SourceVip.json", func(s *Snapshot) {
			s.Windows.LeftFiles, s.Windows.Networks = Known([]string{`C:\k\SourceVip.json`}), Unknown[[]HNSNetwork]("RPC")
		}},
		{"FL514", Warn, "vxlan0", func(s *Snapshot) {
			s.Windows.LeftFiles, s.Windows.Networks.Value = Unknown[[]string]("denied"), append(s.Windows.Networks.Value, vxlan0)
		}},
		{"FL522", Fail, "default/web", func(s *Snapshot) {
			s.Windows.LostPods, reportOf(s).LostPods = Unknown[[]string]("RPC"), []string{"default/web"}
		}},
		{"FL522", Undecided, "RPC", func(s *Snapshot) { s.Windows.LostPods = Unknown[[]string]("RPC") }},
	})
}

// One problem does not hide another one of the same check.
func TestSeveralProblems(t *testing.T) {
	checkAll(t, healthy, []testCase{
		{"FL103", Fail, "10.5.9.0/24 10.5.3.0/24 IPv6 fd05:0:0:3::/64 fd05::/48 FLANNEL_MTU=1500 1450", func(s *Snapshot) {
			s.Env.Value.V4Subnet, s.Env.Value.MTU = pfx("10.5.9.0/24"), 1500
			s.Env.Value.V6Network, s.Env.Value.V6Subnet = pfx("fd05::/48"), pfx("fd05:0:0:3::/64")
		}},
		{"FL108", Warn, "3 missing-at-start this node's lease", func(s *Snapshot) {
			reportOf(s).Retained = &status.Retained{Count: 3, Cause: "missing-at-start", Own: true}
		}},
		{"FL109", Warn, "7 8", func(s *Snapshot) {
			reportOf(s).Forwarded = &dataplane.Forwarded{Dropped: map[string]uint64{"foreign": 7, "malformed": 8}}
		}},
		{"FL211", Warn, "192.0.2.7 5 outsider", func(s *Snapshot) {
			reportOf(s).Guard = &dataplane.GuardReport{Waiting: "192.0.2.7 sends", Packets: map[string]uint64{"outsider": 5}}
		}},
		{"FL211", Warn, "nf_tables 5 outsider", func(s *Snapshot) {
			reportOf(s).Guard = &dataplane.GuardReport{Problem: "no nf_tables", Packets: map[string]uint64{"outsider": 5}}
		}},
		{"FL211", OK, "6 pod 3 pod", func(s *Snapshot) {
			reportOf(s).Guard = &dataplane.GuardReport{Enforce: true, Packets: map[string]uint64{"pod": 9}, Dropped: map[string]uint64{"pod": 6}}
		}},
		{"FL211", Warn, "3 pod 6 pod", func(s *Snapshot) {
			reportOf(s).Guard = &dataplane.GuardReport{Packets: map[string]uint64{"pod": 9}, Dropped: map[string]uint64{"pod": 6}}
		}},
		{"FL301", Warn, "05-calico.conflist 10-flannel.conflist: invalid", func(s *Snapshot) {
			s.files(CNIFile{"05-calico.conflist", `{"plugins":[{"type":"calico"}]}`}, CNIFile{"10-flannel.conflist", "{,"})
		}},
	})
	checkAll(t, healthyWindows, []testCase{
		{"FL504", Warn, "DNS route", func(s *Snapshot) {
			s.Windows.Adapters.Value[0].DNS, s.Interfaces.Value.Defaults = nil, nil
		}},
		{"FL520", Warn, "Public Private", func(s *Snapshot) {
			s.Windows.Firewall.Value = WinFirewall{Profiles: []FirewallProfile{{Name: "Public", Type: 4, On: true}, {Name: "Private", Type: 2, On: true}}}
		}},
		{"FL504", Warn, "DNS 2 IPv4", func(s *Snapshot) {
			s.Windows.Adapters.Value[0].DNS = nil
			s.Interfaces.Value.Defaults = append(s.Interfaces.Value.Defaults, underlay.Default{Index: 3})
		}},
	})
}

// Of a path that fails, only the check of its cause has a verdict: what comes behind the
// cause was not seen.
func TestOnlyTheCauseIsKnown(t *testing.T) {
	down, up := working(), working()
	down.silence()
	down.Host, up.Peer = PathTest{Result: Silent}, "up"
	s := healthy()
	s.Linux.Paths = Known([]Path{down})
	check(t, s, "FL601", Warn, "a (192.168.0.4)")
	check(t, s, "FL602", Skipped, "a (192.168.0.4) peer-down")
	s.Linux.Paths = Known([]Path{down, up})
	if r := find(t, Examine(s), "FL602"); r.Verdict != OK || r.Seen != "up (192.168.0.4)" {
		t.Errorf("%s, %q", r.Verdict, r.Seen)
	}
	for cause, change := range map[Cause]func(*Path){ // of packets other than small ones, which are answered
		causeMTU:        func(p *Path) { p.Full, p.Largest = PathTest{Result: Silent}, 1372 },
		causeChecksum:   func(p *Path) { p.TCP = lost },
		causeCloudRoute: func(p *Path) { p.directly(); p.OfPod = PathTest{Result: Silent, Left: []string{"eth0"}} },
	} {
		p := working()
		change(&p)
		s.Linux.Paths = Known([]Path{p})
		for _, c := range pathCauses {
			switch c.cause {
			case cause:
				check(t, s, c.code, Fail, "a (192.168.0.4)")
			case causeMTU, causeChecksum, causeCloudRoute:
				check(t, s, c.code, Skipped, "a (192.168.0.4) "+string(cause))
			default:
				check(t, s, c.code, OK, "a (192.168.0.4)")
			}
		}
	}
	astray := working() // which hides that the daemon found something else
	astray.Astray, astray.NotForwarding = []Astray{{Source: addr("10.5.3.1"), Error: "invalid argument"}}, true
	s.Linux.Paths = Known([]Path{astray})
	check(t, s, "FL614", Skipped, "a (192.168.0.4) no-route")
	check(t, s, "FL601", OK, "a (192.168.0.4)")
	down.directly()
	down.Expected, down.Inner = false, PathTest{Result: Silent, Left: []string{"eth0"}}
	s.Linux.Paths = Known([]Path{down})
	check(t, s, "FL601", Skipped, "answer")
}

// Without the daemon, the devices are known by their names.
func TestDevicesOfOthers(t *testing.T) {
	for name, want := range map[string]Verdict{"flannel-wg": Warn, "flannel-wg-v6": Warn, "flannel-wg-corp": OK, "flannel-wg0": OK} {
		s := healthy()
		s.Daemon = Known(Answer{Problem: "gone"})
		s.Linux.Devices.Value = append(s.Linux.Devices.Value, Device{Name: name, Index: 11, Type: "tuntap", MTU: 1420})
		s.Linux.Managers = Known([]LinkManager{{"NetworkManager", true, []string{name}}})
		if r := find(t, Examine(s), "FL206"); r.Verdict != want || (want == Warn) != logtest.Names(r.Seen, name) {
			t.Errorf("%s: %s, %q, want %s", name, r.Verdict, r.Seen, want)
		}
	}
}
