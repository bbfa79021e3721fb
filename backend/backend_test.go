package backend_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"flannel/backend"
	"flannel/internal/test/logtest"
	"flannel/pkg/conf"
	"flannel/pkg/dataplane"
	"flannel/pkg/underlay"
	"flannel/subnet"
)

var (
	eth0 = underlay.Link{
		Name: "eth0", Index: 2, MTU: 1500,
		V4: netip.MustParseAddr("192.168.100.1"), V6: netip.MustParseAddr("fd00:100::1"),
		PublicV4: netip.MustParseAddr("192.168.100.1"), PublicV6: netip.MustParseAddr("fd00:100::1"),
		OnLink: []netip.Prefix{netip.MustParsePrefix("192.168.100.0/24"), netip.MustParsePrefix("fd00:100::/64")},
	}
	local = lease("10.5.1.0/24", "192.168.100.1", "", "2001:cafe:42:1::/64", "fd00:100::1", "")
)

// lease makes a lease; an empty subnet switches the family off.
func lease(v4, ip4, data4, v6, ip6, data6 string) subnet.Lease {
	l := subnet.Lease{Backend: "vxlan"}
	for _, e := range []struct {
		to               *subnet.Endpoint
		subnet, ip, data string
	}{{&l.V4, v4, ip4, data4}, {&l.V6, v6, ip6, data6}} {
		if e.subnet == "" {
			continue
		}
		e.to.Subnet, e.to.PublicIP = netip.MustParsePrefix(e.subnet), netip.MustParseAddr(e.ip)
		if e.data != "" {
			e.to.Data = json.RawMessage(e.data)
		}
	}
	return l
}

func make1(t *testing.T, kind backend.Kind, config, os string, n backend.Node) (backend.Backend, []string) {
	t.Helper()
	o := conf.Parse([]byte(config))
	maker := kind.Parse(o, os)
	if err := o.Err(); err != nil {
		t.Fatal(err)
	}
	b, warnings, err := maker(n)
	if err != nil {
		t.Fatal(err)
	}
	return b, warnings
}

// zero are the fields that a device does not use.
var zero = regexp.MustCompile(` Port:0| (?:Learning|GBP|Switch):false| DNS:(})| MACs:\[00:00:00:00:00:00 00:00:00:00:00:00\]`)

func show(b backend.Backend, n backend.Node, peers ...subnet.Lease) string {
	local := local
	if !n.V6 {
		local.V6 = subnet.Endpoint{}
	}
	var s strings.Builder
	fmt.Fprintf(&s, "MTU %d\n", b.MTU())
	links := dataplane.Links{}
	for _, d := range b.Devices(local) {
		// Its MAC address is derived, tested elsewhere.
		fmt.Fprintf(&s, "device %s %s %s\n", d.Name, dataplane.KindName(d.Kind), zero.ReplaceAllString(fmt.Sprintf("%+v", d.Kind), "$1"))
		links[d.Name] = dataplane.Link{Index: len(links) + 2, MAC: dataplane.MAC{2, 0, 0, 0, 0, byte(len(links))}, Output: "a \"b\"\nc"}
	}
	described, err := b.Describe(local, links)
	fmt.Fprintf(&s, "lease %s %s %s %v\n", described.Backend, described.V4.Data, described.V6.Data, err)
	for _, p := range peers {
		paths, err := b.Paths(&p)
		var text []string
		for _, path := range paths {
			text = append(text, strings.ReplaceAll(fmt.Sprint(*path), " }", "}")) // without sources
		}
		verdict := "<nil>"
		if err != nil { // of which other tests see what it names
			verdict = "refused"
		}
		fmt.Fprintf(&s, "peer %s: %v %s\n", p.V4.Subnet, text, verdict)
	}
	return s.String()
}

func TestGolden(t *testing.T) {
	near := lease("10.5.2.0/24", "192.168.100.2", `{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"}`, "2001:cafe:42:2::/64", "fd00:100::2", `{"VNI":1,"VtepMAC":"c6-d2-32-6f-8f-45"}`)
	far := lease("10.5.3.0/24", "192.168.101.3", `{"VtepMAC":"c6:d2:32:6f:8f:46"}`, "2001:cafe:42:3::/64", "fd00:101::3", `{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:47"}`)
	dual := backend.Node{Underlay: eth0, V4: true, V6: true}
	v4 := dual
	v4.V6 = false
	tests := []struct {
		name   string
		kind   backend.Kind
		config string
		node   backend.Node
		want   string
	}{
		{"vxlan, dual-stack", backend.KindOf("vxlan"), `{}`, dual, `MTU 1430
device eth0 existing {}
device flannel.1 vxlan {Tunnel:{MTU:1450 Addr:[10.5.1.0/32] Parent:eth0 Local:192.168.100.1} VNI:1}
device flannel-v6.1 vxlan {Tunnel:{MTU:1430 Addr:[2001:cafe:42:1::/128] Parent:eth0 Local:fd00:100::1} VNI:1}
lease vxlan {"VNI":1,"VtepMAC":"02:00:00:00:00:01"} {"VNI":1,"VtepMAC":"02:00:00:00:00:02"} <nil>
peer 10.5.2.0/24: [{10.5.2.0/24 192.168.100.2 flannel.1 {c6:d2:32:6f:8f:44}} {2001:cafe:42:2::/64 fd00:100::2 flannel-v6.1 {c6:d2:32:6f:8f:45}}] <nil>
peer 10.5.3.0/24: [{10.5.3.0/24 192.168.101.3 flannel.1 {c6:d2:32:6f:8f:46}} {2001:cafe:42:3::/64 fd00:101::3 flannel-v6.1 {c6:d2:32:6f:8f:47}}] <nil>
`},
		{"vxlan with all options, IPv4", backend.KindOf("vxlan"), `{"VNI": 1, "Port": 4789, "MTU": 1400, "GBP": true, "Learning": true, "DirectRouting": true, "MacPrefix": "0E-2A"}`, v4, `MTU 1350
device eth0 existing {}
device flannel.1 vxlan {Tunnel:{MTU:1350 Addr:[10.5.1.0/32] Parent:eth0 Local:192.168.100.1} VNI:1 Port:4789 Learning:true GBP:true}
lease vxlan {"VNI":1,"VtepMAC":"02:00:00:00:00:01"}  <nil>
peer 10.5.2.0/24: [{10.5.2.0/24 192.168.100.2 eth0 {}}] <nil>
peer 10.5.3.0/24: [{10.5.3.0/24 192.168.101.3 flannel.1 {c6:d2:32:6f:8f:46}}] <nil>
`},
		{"host-gw", backend.KindOf("host-gw"), `{"Name": "cbr0"}`, dual, `MTU 1500
device eth0 existing {}
lease host-gw   <nil>
peer 10.5.2.0/24: [{10.5.2.0/24 192.168.100.2 eth0 {}} {2001:cafe:42:2::/64 fd00:100::2 eth0 {}}] <nil>
peer 10.5.3.0/24: [] refused
`},
		{"ipip, IPv4 alone whatever the node has", backend.KindOf("ipip"), `{}`, dual, `MTU 1480
device eth0 existing {}
device flannel.ipip ipip {Tunnel:{MTU:1480 Addr:[10.5.1.0/32] Parent:eth0 Local:192.168.100.1}}
lease ipip   <nil>
peer 10.5.2.0/24: [{10.5.2.0/24 192.168.100.2 flannel.ipip {}}] <nil>
peer 10.5.3.0/24: [{10.5.3.0/24 192.168.101.3 flannel.ipip {}}] <nil>
`},
		{"ipip with all options", backend.KindOf("ipip"), `{"DirectRouting": true}`, v4, `MTU 1480
device eth0 existing {}
device flannel.ipip ipip {Tunnel:{MTU:1480 Addr:[10.5.1.0/32] Parent:eth0 Local:192.168.100.1}}
lease ipip   <nil>
peer 10.5.2.0/24: [{10.5.2.0/24 192.168.100.2 eth0 {}}] <nil>
peer 10.5.3.0/24: [{10.5.3.0/24 192.168.101.3 flannel.ipip {}}] <nil>
`},
		{"vxlan on Windows", backend.KindOf("vxlan"), `{}`, v4, `MTU 1450
device flannel.4096 overlay {Network:{Parent:eth0 Local:192.168.100.1 Subnets:[10.5.1.0/24]} VNI:4096}
lease vxlan {"VNI":4096,"VtepMAC":"02:00:00:00:00:00"}  <nil>
peer 10.5.2.0/24: [] refused
peer 10.5.3.0/24: [{10.5.3.0/24 192.168.101.3 flannel.4096 {c6:d2:32:6f:8f:46}}] <nil>
`},
		{"vxlan on Windows with all options", backend.KindOf("vxlan"), `{"VNI": 4242, "Port": 8472, "MacPrefix": "0E-2B", "Name": "pods", "DirectRouting": true}`, v4, `MTU 1450
device pods overlay {Network:{Parent:eth0 Local:192.168.100.1 Subnets:[10.5.1.0/24]} VNI:4242 Port:8472 MACs:[0e:2b:00:00:00:00 0e:2b:ff:ff:ff:ff]}
lease vxlan {"VNI":4242,"VtepMAC":"02:00:00:00:00:00"}  <nil>
peer 10.5.2.0/24: [] refused
peer 10.5.3.0/24: [{10.5.3.0/24 192.168.101.3 pods {c6:d2:32:6f:8f:46}}] <nil>
`},
		{"host-gw on Windows", backend.KindOf("host-gw"), `{"DNSServerList": "10.96.0.10, 10.96.0.11"}`, dual, `MTU 1500
device cbr0 l2bridge {Network:{Parent:eth0 Local:192.168.100.1 Subnets:[10.5.1.0/24 2001:cafe:42:1::/64]} DNS:10.96.0.10,10.96.0.11}
lease host-gw   <nil>
peer 10.5.2.0/24: [{10.5.2.0/24 192.168.100.2 cbr0 {}} {2001:cafe:42:2::/64 fd00:100::2 cbr0 {}}] <nil>
peer 10.5.3.0/24: [] refused
`},
		{"extension", backend.KindOf("extension"), `{"PreStartupCommand": "pre", "PostStartupCommand": "post $SUBNET", "SubnetAddCommand": "add", "SubnetRemoveCommand": "remove"}`, dual, `MTU 1500
device eth0 existing {}
device extension commands {PreStartup:pre PostStartup:post $SUBNET SubnetAdd:add SubnetRemove:remove V4:{Subnet:10.5.1.0/24 PublicIP:192.168.100.1} V6:{Subnet:2001:cafe:42:1::/64 PublicIP:fd00:100::1}}
lease extension "a \"b\"\nc" "a \"b\"\nc" <nil>
peer 10.5.2.0/24: [] refused
peer 10.5.3.0/24: [] refused
`},
		{"udp", backend.KindOf("udp"), `{}`, v4, `MTU 1472
device eth0 existing {}
device flannel0 tun {Tunnel:{MTU:1472 Addr:[10.5.1.0/32] Parent:eth0 Local:192.168.100.1} Port:8285}
lease    <nil>
peer 10.5.2.0/24: [{10.5.2.0/24 192.168.100.2 flannel0 {}}] <nil>
peer 10.5.3.0/24: [{10.5.3.0/24 192.168.101.3 flannel0 {}}] <nil>
`},
		{"udp with another port", backend.KindOf("udp"), `{"Port": 9000}`, v4, `MTU 1472
device eth0 existing {}
device flannel9000 tun {Tunnel:{MTU:1472 Addr:[10.5.1.0/32] Parent:eth0 Local:192.168.100.1} Port:9000}
lease    <nil>
peer 10.5.2.0/24: [{10.5.2.0/24 192.168.100.2 flannel9000 {}}] <nil>
peer 10.5.3.0/24: [{10.5.3.0/24 192.168.101.3 flannel9000 {}}] <nil>
`},
		{"alloc", backend.KindOf("alloc"), `{}`, dual, `MTU 1500
device eth0 existing {}
lease alloc   <nil>
peer 10.5.2.0/24: [] <nil>
peer 10.5.3.0/24: [] <nil>
`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			os := "linux"
			if strings.Contains(test.name, "Windows") {
				os = "windows"
			}
			b, _ := make1(t, test.kind, test.config, os, test.node)
			if got := show(b, test.node, near, far); got != test.want {
				t.Errorf("got\n%s\nwant\n%s", got, test.want)
			}
		})
	}
}

func TestVTEPAddress(t *testing.T) {
	dual := backend.Node{Underlay: eth0, V4: true, V6: true}
	b, _ := make1(t, backend.KindOf("vxlan"), `{}`, "linux", dual)
	devices := b.Devices(local)
	// Nodes of different versions must derive the same ones.
	for i, want := range []string{"", "12:2f:2d:db:4d:c8", "f6:9b:df:9c:c1:58"} {
		if got := devices[i].MAC; want != "" && (got.String() != want || !got.Unicast() || got[0]&2 == 0) {
			t.Errorf("%s gets the MAC address %s, want %s", devices[i].Name, got, want)
		}
	}
	described := lease("10.5.1.0/24", "192.168.100.1", fmt.Sprintf(`{"VNI":1,"VtepMAC":"%s"}`, devices[1].MAC),
		"2001:cafe:42:1::/64", "fd00:100::1", fmt.Sprintf(`{"VNI":1,"VtepMAC":"%s"}`, devices[2].MAC))
	thief := described
	thief.V4.Subnet, thief.V6.Subnet = netip.MustParsePrefix("10.5.2.0/24"), netip.MustParsePrefix("2001:cafe:42:2::/64")
	direct, _ := make1(t, backend.KindOf("vxlan"), `{"DirectRouting": true}`, "linux", dual)
	for _, b := range []backend.Backend{b, direct} {
		for l, want := range map[*subnet.Lease]bool{&described: true, &thief: false} {
			ends, err := b.Ends(l)
			if err != nil || len(ends) != 2 {
				t.Fatalf("the ends %v, %v", ends, err)
			}
			for _, end := range ends {
				if got := b.Derived(end); got != want {
					t.Errorf("%v counts as derived: %t, want %t", end, got, want)
				}
			}
		}
	}
	// A Windows node knows a Linux node's, whatever its HNS network is called.
	windows, _ := make1(t, backend.KindOf("vxlan"), `{"VNI": 4096, "Port": 4789, "Name": "pods"}`, "windows", backend.Node{Underlay: eth0, V4: true})
	linux, _ := make1(t, backend.KindOf("vxlan"), `{"VNI": 4096, "Port": 4789}`, "linux", dual)
	if end := (&dataplane.Path{Dst: local.V4.Subnet, Encap: dataplane.VTEP{MAC: linux.Devices(local)[1].MAC}}); !windows.Derived(end) {
		t.Errorf("%v does not count as derived on Windows", end)
	}
}

// A node publishes from where its tunnel sends; nodes of flannel do not, and ignore it.
func TestTunnelSources(t *testing.T) {
	n := backend.Node{Underlay: eth0, V4: true, V6: true, Sources: []netip.Addr{netip.MustParseAddr("203.0.113.9"), netip.MustParseAddr("2001:db8::9"), netip.MustParseAddr("203.0.113.8")}}
	b, _ := make1(t, backend.KindOf("vxlan"), `{}`, "linux", n)
	described, err := b.Describe(local, dataplane.Links{"flannel.1": {}, "flannel-v6.1": {}})
	if err != nil {
		t.Fatal(err)
	}
	const mac = "00:00:00:00:00:00"
	want := []string{`{"VNI":1,"VtepMAC":"` + mac + `","Sources":["203.0.113.9","203.0.113.8"]}`, `{"VNI":1,"VtepMAC":"` + mac + `","Sources":["2001:db8::9"]}`}
	for i, e := range described.Endpoints() {
		if string(e.Data) != want[i] {
			t.Errorf("it publishes %s, want %s", e.Data, want[i])
		}
	}
	for data, want := range map[string]dataplane.Sources{
		`{"VNI":1,"VtepMAC":"02:00:00:00:00:09","Sources":["203.0.113.9","203.0.113.8"]}`: "203.0.113.9 203.0.113.8",
		`{"VNI":1,"VtepMAC":"02:00:00:00:00:09","Sources":null}`:                          "",
		`{"VNI":1,"VtepMAC":"02:00:00:00:00:09"}`:                                         "",
	} {
		p := lease("10.5.2.0/24", "192.168.100.2", data, "", "", "")
		if paths, err := b.Paths(&p); err != nil || len(paths) != 1 || paths[0].Sources != want {
			t.Errorf("%s gives %v, %v; want the sources %q", data, paths, err, want)
		}
	}
}

// What a Linux node says when there are Windows nodes; and those say nothing of themselves.
func TestForWindows(t *testing.T) {
	for _, test := range []struct{ config, os, want string }{
		{`{"VNI": 4096, "Port": 4789}`, "linux", ""},
		{`{"VNI": 65535, "Port": 4789, "GBP": true}`, "linux", ""},
		{`{"VNI": 65536, "Port": 4789}`, "linux", "Backend: VNI 65536 Windows 65535 4096"},
		{`{}`, "linux", "Backend: VNI 1 Windows 4096 Port 8472 Linux 4789"},
		{`{"VNI": 4095, "Port": 4789}`, "linux", "Backend: VNI 4095 Windows 4096"},
		{`{"VNI": 4096, "Port": 8472}`, "linux", "Backend: Port 8472 Windows Server 2022 4789"},
		{`{"VNI": 4096, "Port": 4789, "DirectRouting": true}`, "linux", "Backend: DirectRouting Windows"},
		{`{"VNI": 4096}`, "windows", ""},
	} {
		maker := backend.KindOf("vxlan").Parse(conf.Parse([]byte(test.config)), test.os)
		b, _, err := maker(backend.Node{Underlay: underlay.Link{Name: "eth0", MTU: 1500}, V4: true})
		if err != nil {
			t.Fatal(err)
		}
		if got := b.ForWindows(); (got == "") != (test.want == "") || !logtest.Names(got, strings.Fields(test.want)...) {
			t.Errorf("%s on %s: %s", test.config, test.os, got)
		}
	}
}

// A node of Windows and one of Linux without a port use the default of their system: a configuration that names it changes
// nothing, and one that names the other system's disconnects nodes.
func TestDefaultPort(t *testing.T) {
	wire := func(config, os string) backend.Wire {
		b, _ := make1(t, backend.KindOf("vxlan"), config, os, backend.Node{Underlay: eth0, V4: true})
		return b.Wire()
	}
	for os, ports := range map[string][2]string{"linux": {"8472", "4789"}, "windows": {"4789", "8472"}} {
		without := wire(`{"VNI": 4096}`, os)
		own, other := wire(`{"VNI": 4096, "Port": `+ports[0]+`}`, os), wire(`{"VNI": 4096, "Port": `+ports[1]+`}`, os)
		if without != own || without == other {
			t.Errorf("%s: without a port %q, with %s %q, with %s %q", os, without.Name, ports[0], own.Name, ports[1], other.Name)
		}
	}
}
