package doctor

import (
	"net/netip"
	"slices"
	"testing"

	"flannel/internal/test/logtest"
	"flannel/pkg/underlay"
)

// foreign adds the bridge cni0 of somebody else, with another MTU and a pod, beside mybr.
func (s *Snapshot) foreign() {
	s.changeDevice("cni0", func(d *Device) { d.Name = "mybr" })
	s.Interfaces.Value.Interfaces[1].Name = "mybr"
	s.Linux.Devices.Value = append(s.Linux.Devices.Value, Device{Name: "cni0", Index: 20, Type: "bridge", MTU: 1500}, Device{Name: "veth2", Index: 21, Type: "veth", MTU: 1500, Master: 20})
	s.Interfaces.Value.Interfaces = append(s.Interfaces.Value.Interfaces, underlay.Interface{Name: "cni0", Index: 20, MTU: 1500, Addrs: []underlay.Addr{{IP: addr("10.88.0.1")}}})
	s.Linux.Managers = Known([]LinkManager{{"NetworkManager", true, []string{"cni0"}}})
}

// Only of the subnets in FLANNEL_FORMER_SUBNET and FLANNEL_FORMER_IPV6_SUBNET does flanneld free the bridge. To get rid
// of any other address, the bridge must be deleted.
func TestAddressOfOthers(t *testing.T) {
	for address, ownFormer := range map[string]bool{
		"10.5.9.1/24": true, "10.5.8.1/24": true, "fd05:9::1/64": true,
		"10.5.9.1/25": false, "10.5.9.2/24": false, "10.88.0.1/16": false, "fd05:8::1/64": false,
	} {
		s := healthy()
		s.Env.Value.FormerV4 = []netip.Prefix{pfx("10.5.8.0/24"), pfx("10.5.9.0/24")}
		s.Env.Value.FormerV6 = []netip.Prefix{pfx("fd05:9::/64")}
		former, other := underlay.Addr{IP: addr("10.5.9.1")}, pfx(address)
		s.Interfaces.Value.Interfaces[1].Addrs = []underlay.Addr{former, {IP: other.Addr(), Net: other.Masked()}}
		r := find(t, Examine(s), "FL207")
		if r.Verdict != Fail || logtest.Names(r.Fix, "flanneld then deletes") != ownFormer ||
			logtest.Names(r.Fix, "FLANNEL_FORMER_SUBNET", "ip link delete cni0") == ownFormer || logtest.Names(r.Seen, other.String()) == ownFormer {
			t.Errorf("%s: %s, %q, %q", address, r.Verdict, r.Seen, r.Fix)
		}
	}
}

// The pods' bridge is that of the CNI configuration with the daemon's subnet file. Another one, such as the cni0 of
// containerd's example configuration, or that of another flanneld on the host, is not judged.
func TestForeignBridge(t *testing.T) {
	conf := func(rest string) CNIFile { return CNIFile{"10-flannel.conf", `{"type":"flannel"` + rest + `}`} }
	ofB, other := CNIFile{"20-b.conf", `{"type":"flannel","subnetFile":"/run/b.env","delegate":{"bridge":"mybr"}}`}, CNIFile{"99-other.conf", `{"type":"bridge","bridge":"cni0"}`}
	const own, theirs = "/run/flannel/subnet.env", "/run/b.env"
	for name, c := range map[string]struct {
		subnetFile string
		files      []CNIFile
		verdict    Verdict // of FL207
	}{
		"the configuration names a bridge":  {own, []CNIFile{conf(`,"delegate":{"bridge":"mybr"}`)}, OK},
		"it names none":                     {own, []CNIFile{conf(``)}, Fail},
		"it names the subnet file":          {own, []CNIFile{conf(`,"subnetFile":"/run/flannel/../flannel/subnet.env"`)}, Fail},
		"by the link /var/run":              {"/var" + own, []CNIFile{conf(``)}, Fail},
		"of another flanneld, the second":   {theirs, []CNIFile{conf(``), ofB}, OK},
		"of another flanneld, by the link":  {"/var" + theirs, []CNIFile{conf(``), ofB}, OK},
		"another flanneld has none":         {theirs, []CNIFile{conf(``)}, Skipped},
		"another flanneld, and nobody does": {theirs, []CNIFile{other}, Skipped},
		"only another flanneld has one":     {own, []CNIFile{ofB}, Skipped},
		"without a bridge":                  {own, []CNIFile{conf(`,"delegate":{"type":"ptp"}`)}, Skipped},
		"another program's configuration":   {own, []CNIFile{other}, Skipped},
		"no configuration":                  {own, nil, Skipped},
		"an unread one":                     {own, []CNIFile{{"10-flannel.conf", ""}}, Undecided},
		"an unread one, of another":         {theirs, []CNIFile{conf(``), {"20-b.conf", ""}}, Undecided},
	} {
		s := healthy()
		s.foreign()
		s.files(c.files...)
		s.SubnetFile = c.subnetFile
		for a := addr("10.5.3.3"); len(s.Linux.Reserved.Value) < 253; a = a.Next() { // no address is left
			s.Linux.Reserved.Value = append(s.Linux.Reserved.Value, a)
		}
		wants := map[string]Verdict{"FL206": OK, "FL207": c.verdict, "FL208": c.verdict, "FL213": Fail}
		switch c.verdict {
		case Fail:
			wants["FL206"], wants["FL208"] = Warn, Warn
		case Undecided:
			wants["FL206"], wants["FL213"] = Undecided, Skipped
		case Skipped:
			wants["FL213"] = Skipped
		}
		for code, want := range wants {
			if r := find(t, Examine(s), code); r.Verdict != want {
				t.Errorf("%s: %s is %s, %q, want %s", name, code, r.Verdict, r.Seen, want)
			}
		}
	}
	noDirectory := Unknown[CNI]("no such directory") // in flannel's pod
	for name, cni := range map[string]Fact[CNI]{"no configuration": Known(CNI{}), "an unread directory": noDirectory,
		"an unread file": Known(CNI{Files: []CNIFile{{"10-flannel.conf", ""}}})} {
		s := healthy()
		s.CNI = cni
		s.Interfaces.Value.Interfaces[1].Addrs = []underlay.Addr{{IP: addr("10.5.9.1")}} // of an earlier subnet
		if r := find(t, Examine(s), "FL207"); r.Verdict != Fail {
			t.Errorf("%s, cni0 has an address of the pod network: %s, %q", name, r.Verdict, r.Seen)
		}
	}
	s := healthy()
	s.foreign()
	s.CNI = noDirectory
	check(t, s, "FL207", Undecided, "no such directory")
	s.Linux.Devices.Value = slices.DeleteFunc(s.Linux.Devices.Value, func(d Device) bool { return d.Type == "bridge" })
	check(t, s, "FL207", Skipped, "does not exist")
}
