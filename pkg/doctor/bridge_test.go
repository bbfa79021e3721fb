package doctor

import (
	"net/netip"
	"slices"
	"testing"

	"flannel/internal/test/logtest"
	"flannel/pkg/status"
	"flannel/pkg/underlay"
	"flannel/subnet"
)

// foreign adds the bridge cni0 of somebody else, with another MTU and a pod, beside mybr.
func (s *Snapshot) foreign() {
	s.changeDevice("cni0", func(d *Device) { d.Name = "mybr" })
	s.Interfaces.Value.Interfaces[1].Name = "mybr"
	s.Linux.Devices.Value = append(s.Linux.Devices.Value, Device{Name: "cni0", Index: 20, Type: "bridge", MTU: 1500}, Device{Name: "veth2", Index: 21, Type: "veth", MTU: 1500, Master: 20})
	s.Interfaces.Value.Interfaces = append(s.Interfaces.Value.Interfaces, underlay.Interface{Name: "cni0", Index: 20, MTU: 1500, Addrs: []underlay.Addr{{IP: addr("10.88.0.1")}}})
	s.Linux.Managers = Known([]LinkManager{{"NetworkManager", true, []string{"cni0"}}})
}

// onBridge gives cni0 these addresses, "10.5.3.1/24", instead of its own.
func (s *Snapshot) onBridge(addrs ...string) {
	in := &s.Interfaces.Value.Interfaces[1]
	in.Addrs = nil
	for _, text := range addrs {
		a := underlay.Addr{IP: pfx(text).Addr(), Net: pfx(text).Masked(), Host: pfx(text).IsSingleIP()}
		if a.Host { // as the kernel's are read
			a.Net = netip.Prefix{}
		}
		in.Addrs = append(in.Addrs, a)
	}
}

// dualStack gives the node a subnet of IPv6, too.
func dualStack() Snapshot {
	s := healthy()
	reportOf(&s).Node.Networks = append(reportOf(&s).Node.Networks, status.Network{Network: pfx("fd05::/48"), Subnet: pfx("fd05::/64")})
	s.Env.Value.V6Network, s.Env.Value.V6Subnet = pfx("fd05::/48"), pfx("fd05::/64")
	return s
}

func TestBridgeAddress(t *testing.T) {
	checkAll(t, dualStack, []testCase{
		{"FL207", OK, "10.5.3.0/24 fd05::/64", func(s *Snapshot) { s.onBridge("10.5.3.1/24", "fd05::1/64", "fe80::1/64") }},
		{"FL207", OK, "", func(s *Snapshot) { s.onBridge() }}, // the next pod gives it both
		{"FL207", OK, "", func(s *Snapshot) { s.Interfaces.Value.Interfaces[1].Addrs = []underlay.Addr{{IP: addr("10.5.3.1")}} }},
		{"FL207", Fail, "mybr 10.9.0.1/24", func(s *Snapshot) {
			s.files(CNIFile{"10-flannel.conf", `{"type":"flannel","delegate":{"bridge":"mybr"}}`})
			s.changeDevice("cni0", func(d *Device) { d.Name = "mybr" })
			s.onBridge("10.9.0.1/24")
		}},
		// The plugin bridge wants the gateway with exactly this length.
		{"FL207", Fail, "10.5.3.1/23 10.5.3.0/24", func(s *Snapshot) { s.onBridge("10.5.3.1/23") }},
		{"FL207", Fail, "10.5.3.1/32 10.5.3.0/24", func(s *Snapshot) { s.onBridge("10.5.3.1/32") }},
		{"FL207", Fail, "10.5.3.2/24 10.5.3.0/24", func(s *Snapshot) { s.onBridge("10.5.3.2/24") }},
		{"FL207", Fail, "169.254.7.1/16 10.5.3.0/24", func(s *Snapshot) { s.onBridge("169.254.7.1/16") }},
		{"FL207", Fail, "fd05::1/80 fd05::/64", func(s *Snapshot) { s.onBridge("10.5.3.1/24", "fd05::1/80") }},
		// It looks for the gateway from the oldest IPv4 and from the newest IPv6 address on.
		{"FL207", Fail, "10.88.0.1/16 10.5.3.0/24", func(s *Snapshot) { s.onBridge("10.88.0.1/16", "10.5.3.1/24") }},
		{"FL207", Fail, "fd05::2/64 fd05::/64", func(s *Snapshot) { s.onBridge("10.5.3.1/24", "fd05::1/64", "fd05::2/64") }},
		{"FL207", Fail, "plugin bridge 10.88.0.1/16", func(s *Snapshot) { s.onBridge("10.88.0.1/16", "fd05::1/64") }},
		// These hinder no pod.
		{"FL207", Warn, "fd05::2/64 fd05::/64", func(s *Snapshot) { s.onBridge("10.5.3.1/24", "fd05::2/64", "fd05::1/64") }},
		{"FL207", Warn, "fd09::1/64 fd05::/64", func(s *Snapshot) { s.onBridge("10.5.3.1/24", "fd05::1/64", "fd09::1/64") }},
		{"FL207", Warn, "10.5.9.1/24 10.5.3.0/24", func(s *Snapshot) { s.onBridge("10.5.3.1/24", "10.5.9.1/24") }},
		{"FL207", Warn, "fd09::1/64 fd05::/64", func(s *Snapshot) { s.onBridge("fd09::1/64") }},
		// The node was in both families before.
		{"FL207", OK, "10.5.3.0/24", func(s *Snapshot) {
			s.Env.Value.FormerV6 = []netip.Prefix{pfx("fd05::/64")}
			s.onBridge("10.5.3.1/24", "fd05::1/64")
		}},
		// With these the plugin bridge does not compare the address, or the bridge has none.
		{"FL207", Skipped, "dhcp", func(s *Snapshot) { s.delegates(`"ipam":{"type":"dhcp"}`) }},
		{"FL207", Skipped, "forceAddress", func(s *Snapshot) { s.delegates(`"delegate":{"forceAddress":true}`) }},
		{"FL207", Skipped, "isGateway", func(s *Snapshot) { s.delegates(`"delegate":{"isGateway":false}`) }},
		{"FL207", Fail, "10.9.0.1/24", func(s *Snapshot) { s.delegates(`"delegate":{"isGateway":false,"isDefaultGateway":true}`) }},
		{"FL207", Fail, "10.9.0.1/24", func(s *Snapshot) { s.delegates(`"ipam":{"type":"host-local"},"delegate":{"isGateway":true}`) }},
	})
}

// delegates gives the flannel plugin these keys, and cni0 a foreign address.
func (s *Snapshot) delegates(keys string) {
	s.files(CNIFile{"10-flannel.conf", `{"type":"flannel",` + keys + `}`})
	s.onBridge("10.9.0.1/24")
}

// flanneld deletes the gateways of the former subnets in the subnet file, and no other address of the bridge.
func TestAddressOfOthers(t *testing.T) {
	lagging := former
	lagging.Value.V4Subnet, lagging.Value.FormerV4 = pfx("10.5.9.0/24"), nil
	for name, c := range map[string]struct {
		byFlanneld, foreign []string
		others              []string // all addresses but this node's; what to do with them depends on FL103
		own                 []string
		env                 Fact[subnet.Env]
	}{
		"former":                       {byFlanneld: []string{"10.5.9.1/24"}, env: former},
		"the one before":               {byFlanneld: []string{"10.5.8.1/24"}, env: former},
		"former, own IPv6":             {byFlanneld: []string{"10.5.9.1/24"}, own: []string{"fd05::1/64"}, env: former},
		"former of IPv6":               {byFlanneld: []string{"fd05:9::1/64"}, own: []string{"10.5.3.1/24", "fd05::1/64"}, env: former},
		"another length":               {foreign: []string{"10.5.9.1/25"}, env: former},
		"no gateway":                   {foreign: []string{"10.5.9.2/24"}, env: former},
		"of another configuration":     {foreign: []string{"10.88.0.1/16"}, env: former},
		"former and foreign":           {byFlanneld: []string{"10.5.9.1/24"}, foreign: []string{"10.88.0.1/16"}, env: former},
		"former and foreign, own IPv6": {byFlanneld: []string{"10.5.9.1/24"}, foreign: []string{"10.88.0.1/16"}, own: []string{"fd05::1/64"}, env: former},
		"foreign, former of IPv6":      {byFlanneld: []string{"fd05:9::1/64"}, foreign: []string{"10.88.0.1/16"}, own: []string{"fd05::1/64"}, env: former},
		"foreign, own IPv6":            {foreign: []string{"10.88.0.1/16"}, own: []string{"fd05::1/64"}, env: former},
		"foreign IPv6, own":            {foreign: []string{"fd05::1/80"}, own: []string{"10.5.3.1/24"}, env: former},
		"many":                         {foreign: []string{"10.1.0.1/24", "10.2.0.1/24", "10.3.0.1/24", "10.4.0.1/24", "10.6.0.1/24", "10.7.0.1/24"}, env: former},
		"IPv6 of another network":      {foreign: []string{"fd09::1/64"}, env: former},
		"unread":                       {others: []string{"10.5.9.1/24"}, env: Unknown[subnet.Env]("denied")},
		"no file":                      {others: []string{"10.5.9.1/24"}, env: Known(subnet.Env{})},
		"of another subnet":            {others: []string{"10.5.9.1/24"}, env: lagging},
		"unread, additional":           {others: []string{"fd09::1/64"}, env: Unknown[subnet.Env]("denied")},
	} {
		s := dualStack()
		s.Env = c.env
		s.onBridge(slices.Concat(c.byFlanneld, c.foreign, c.others, c.own)...)
		r := find(t, Examine(s), "FL207")
		if logtest.Names(r.Fix, "FL103") != (c.others != nil) || logtest.Names(r.Fix, "link delete") {
			t.Errorf("%s: %s, %q, %q", name, r.Verdict, r.Seen, r.Fix)
		}
		for _, a := range slices.Concat(c.byFlanneld, c.foreign, c.others, c.own) {
			isForeign, isFormer := slices.Contains(c.foreign, a), slices.Contains(c.byFlanneld, a)
			if logtest.Names(r.Fix, "delete "+a+" dev") != isForeign || logtest.Names(r.Fix, "flanneld deletes "+a) != isFormer {
				t.Errorf("%s: %s: %s, %q, %q", name, a, r.Verdict, r.Seen, r.Fix)
			}
			if isOwn := slices.Contains(c.own, a); name != "many" && logtest.Names(r.Seen, a) == isOwn {
				t.Errorf("%s: %q names %s: %t", name, r.Seen, a, !isOwn)
			}
		}
	}
	// All pods of the node have to go only if no new one can start, and no other address is in the way.
	for address, want := range map[string]bool{"10.5.9.1/24": true, "10.88.0.1/16": false, "fd05:9::1/64": false} {
		s := dualStack()
		s.Env = former
		s.onBridge(address)
		if r := find(t, Examine(s), "FL207"); logtest.Names(r.Fix, "delete pods") != want {
			t.Errorf("%s: %q", address, r.Fix)
		}
	}
}

// former is the subnet file of a node that had other subnets.
var former = Known(subnet.Env{V4Network: pfx("10.5.0.0/16"), V4Subnet: pfx("10.5.3.0/24"), V6Network: pfx("fd05::/48"), V6Subnet: pfx("fd05::/64"), MTU: 1450,
	FormerV4: []netip.Prefix{pfx("10.5.8.0/24"), pfx("10.5.9.0/24")}, FormerV6: []netip.Prefix{pfx("fd05:9::/64")}})

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
