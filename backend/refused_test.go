package backend_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"flannel/backend"
	"flannel/internal/test/logtest"
	"flannel/pkg/conf"
	"flannel/pkg/dataplane"
)

func TestRefusedLeaseData(t *testing.T) {
	b, _ := make1(t, backend.KindOf("vxlan"), `{}`, "linux", backend.Node{Underlay: eth0, V4: true})
	for data, want := range map[string]string{
		``:                         "",
		`"x"`:                      "",
		`{"VNI":1}`:                `VtepMAC "" MAC`,
		`{"VNI":1,"VtepMAC":"zz"}`: `VtepMAC "zz" MAC`,
		`{"VNI":2,"VtepMAC":"02:00:00:00:00:01"}`:                   "VNI 2 1",
		`{"VNI":1,"VtepMAC":"ff:ff:ff:ff:ff:ff"}`:                   "VtepMAC ff:ff:ff:ff:ff:ff",
		`{"VNI":1,"VtepMAC":"01:00:5e:00:00:01"}`:                   "VtepMAC 01:00:5e:00:00:01",
		`{"VtepMAC":"02:00:00:00:00:09","Sources":"192.0.2.1"}`:     "",
		`{"VtepMAC":"02:00:00:00:00:09","Sources":["192.0.2.300"]}`: "",
		`{"VNI":1,"VtepMAC":"00:00:00:00:00:00"}`:                   "VtepMAC 00:00:00:00:00:00",
		`{"VNI":1,"VtepMAC":"02:00:5e:10:00:00:00:01"}`:             "VtepMAC 02:00:5e:10:00:00:00:01",
	} {
		p := lease("10.5.2.0/24", "192.168.100.2", data, "", "", "")
		if paths, err := b.Paths(&p); err == nil || !logtest.Names(err.Error(), strings.Fields(want)...) {
			t.Errorf("%s gives %v, %v; want an error that names %s", data, paths, err, want)
		}
	}
}

// What a peer of extension publishes is a string, whatever is in it.
func TestExtensionData(t *testing.T) {
	b, _ := make1(t, backend.KindOf("extension"), `{"SubnetAddCommand": "add"}`, "linux", backend.Node{Underlay: eth0, V4: true, V6: true})
	for data, want := range map[string]string{``: "", `null`: "", `""`: "", `"$(id); a\nb"`: "$(id); a\nb"} {
		p := lease("10.5.2.0/24", "192.168.100.2", data, "2001:cafe:42:2::/64", "fd00:100::2", data)
		paths, err := b.Paths(&p)
		if err != nil || len(paths) != 2 || paths[0].Encap != paths[1].Encap || paths[0].Encap.(dataplane.ByCommands).Data != want {
			t.Errorf("%s gives %v, %v", data, paths, err)
		}
	}
	for _, data := range []string{`{}`, `1`, `["a"]`, `{"VNI":1}`} {
		p := lease("10.5.2.0/24", "192.168.100.2", data, "", "", "")
		if paths, err := b.Paths(&p); err == nil || !logtest.Names(err.Error(), "JSON") {
			t.Errorf("%s gives %v, %v", data, paths, err)
		}
	}
	if _, err := b.Describe(local, dataplane.Links{"eth0": {}}); err == nil || !logtest.Names(err.Error(), "PreStartupCommand") {
		t.Errorf("the lease is described before the command has run: %v", err)
	}
}

func TestRefusedConfiguration(t *testing.T) {
	for _, test := range []struct {
		kind       backend.Kind
		config, os string
		mtu        int
		v6         bool
		want       string
	}{
		{backend.KindOf("vxlan"), `{"VNI": 16777216}`, "linux", 1500, false, "VNI: 16777216 16777215"},
		{backend.KindOf("vxlan"), `{"VNI": 0}`, "linux", 1500, false, "VNI: 0 1"},
		{backend.KindOf("vxlan"), `{"VNI": 4095}`, "windows", 1500, false, "VNI: 4095 4096"},
		{backend.KindOf("vxlan"), `{"VNI": 16777216}`, "windows", 1500, false, "VNI: 16777216 16777215"},
		{backend.KindOf("vxlan"), `{"MacPrefix": "0E2A"}`, "windows", 1500, false, `MacPrefix: "0E2A" 0E-2A`},
		{backend.KindOf("vxlan"), `{"MacPrefix": "0F-2A"}`, "windows", 1500, false, "MacPrefix: 0F-2A"},
		{backend.KindOf("vxlan"), `{"Name": "a\nb"}`, "windows", 1500, false, `Name: "a\nb"`},
		{backend.KindOf("host-gw"), `{"DNSServerList": "10.96.0.10;10.96.0.11"}`, "windows", 1500, false, "DNSServerList: 10.96.0.10;10.96.0.11 IP"},
		{backend.KindOf("vxlan"), `{"Port": 70000}`, "linux", 1500, false, "Port: 70000 65535"},
		{backend.KindOf("vxlan"), `{"Port": -1}`, "linux", 1500, false, "Port: -1 0"},
		{backend.KindOf("vxlan"), `{"VNI": 9999999}`, "linux", 1500, false, ""},
		{backend.KindOf("vxlan"), `{"VNI": 10000000}`, "linux", 1500, false, "Linux 15 VNI 7"},
		{backend.KindOf("vxlan"), `{"VNI": 10000}`, "linux", 1500, true, "VNI 4"},
		{backend.KindOf("vxlan"), `{"VNI": 10000000}`, "windows", 1500, false, ""},
		{backend.KindOf("vxlan"), `{"MTU": -5}`, "linux", 1500, false, "MTU: -5 0"},
		{backend.KindOf("vxlan"), `{"MTU": 600}`, "linux", 1500, false, "MTU: 600 576"},
		{backend.KindOf("vxlan"), `{"MTU": 1300}`, "linux", 1500, true, "1230 VXLAN 70 1280 1350"},
		{backend.KindOf("vxlan"), `{}`, "linux", 600, false, "550"},
		{backend.KindOf("host-gw"), `{}`, "linux", 1000, true, "1280"},
		{backend.KindOf("ipip"), `{}`, "linux", 596, false, ""},
		{backend.KindOf("extension"), `{}`, "linux", 1500, false, "SubnetAddCommand PostStartupCommand alloc"},
		{backend.KindOf("extension"), `{"SubnetAddCommand": " "}`, "windows", 1500, false, "SubnetAddCommand PostStartupCommand alloc"},
		{backend.KindOf("extension"), `{"SubnetAddCommand": "x"}`, "windows", 1500, false, ""},
		{backend.KindOf("extension"), `{"SubnetAddCommand": "x"}`, "linux", 500, false, "500 576"},
		{backend.KindOf("extension"), `{"SubnetAddCommand": ["x"]}`, "linux", 1500, false, "SubnetAddCommand:"},
		{backend.KindOf("ipip"), `{}`, "linux", 595, false, "eth0 595 575 20 596"},
		{backend.KindOf("ipip"), `{}`, "windows", 1500, false, "Type: Linux Windows vxlan"},
		{backend.KindOf("ipip"), `{"DirectRouting": "maybe"}`, "linux", 1500, false, `DirectRouting: "maybe"`},
		{backend.KindOf("udp"), `{"Port": 0}`, "linux", 1500, false, "Port: 0 1"},
		{backend.KindOf("udp"), `{"Port": 65536}`, "linux", 1500, false, "Port: 65536 65535"},
		{backend.KindOf("udp"), `{}`, "linux", 603, false, "eth0 603 575 576 604"},
		{backend.KindOf("udp"), `{}`, "linux", 604, false, ""},
		{backend.KindOf("udp"), `{}`, "windows", 1500, false, "Type: udp Windows vxlan host-gw"},
	} {
		o := conf.Parse([]byte(test.config))
		maker := test.kind.Parse(o, test.os)
		err := o.Err()
		if err == nil {
			link := eth0
			link.MTU = test.mtu
			_, _, err = maker(backend.Node{Underlay: link, V4: true, V6: test.v6})
		}
		if (err != nil) != (test.want != "") || err != nil && !logtest.Names(err.Error(), strings.Fields(test.want)...) {
			t.Errorf("%s with MTU %d gives %v, want %q", test.config, test.mtu, err, test.want)
		}
	}
	if _, warnings := make1(t, backend.KindOf("vxlan"), `{"MTU": 9000}`, "linux", backend.Node{Underlay: eth0, V4: true}); len(warnings) != 1 || !logtest.Names(warnings[0], "9000", "eth0") {
		t.Errorf("an MTU above the underlay's gives the warnings %q", warnings)
	}
}

// Where IPv6 is not on the link, host-gw rejects a peer that has it, also for IPv4. It warns of that before there are peers.
func TestIPv6OffTheLink(t *testing.T) {
	dhcp := eth0
	dhcp.OnLink = []netip.Prefix{netip.MustParsePrefix("192.168.100.0/24"), netip.MustParsePrefix("fe80::/64"), netip.PrefixFrom(dhcp.V6, 128)}
	for _, os := range []string{"linux", "windows"} {
		for _, test := range []struct {
			node backend.Node
			want int
		}{
			{backend.Node{Underlay: dhcp, V4: true, V6: true}, 1},
			{backend.Node{Underlay: dhcp, V4: true}, 0},
			{backend.Node{Underlay: eth0, V4: true, V6: true}, 0},
		} {
			b, warnings := make1(t, backend.KindOf("host-gw"), `{}`, os, test.node)
			if len(warnings) != test.want || test.want > 0 && !logtest.Names(warnings[0], dhcp.V6.String(), dhcp.Name) {
				t.Errorf("%s, %v: warnings %q, want %d", os, test.node, warnings, test.want)
			}
			peer := lease("10.5.2.0/24", "192.168.100.2", "", "2001:cafe:42:2::/64", "fd00:100::2", "")
			if _, err := b.Paths(&peer); errors.Is(err, backend.ErrOffLink) != (test.want > 0) {
				t.Errorf("%s, %v: the paths to a peer: %v", os, test.node, err)
			}
		}
	}
}

// One configuration serves nodes of both systems: keys of the other one are no error, and what a system cannot do is
// said where it matters.
func TestWarnings(t *testing.T) {
	for _, test := range []struct {
		kind       backend.Kind
		config, os string
		want       []string
	}{
		{backend.KindOf("vxlan"), `{"MacPrefix": "anything", "Name": "a\nb"}`, "linux", nil},
		{backend.KindOf("host-gw"), `{"DNSServerList": "anything", "Name": "cbr0"}`, "linux", nil},
		{backend.KindOf("extension"), `{"SubnetAddCommand": "x", "ShutdownCommand": "y"}`, "linux", []string{"ShutdownCommand: flannel"}},
		{backend.KindOf("vxlan"), `{"VNI": 4096, "Port": 4789, "Learning": true, "MacPrefix": "0E-2A", "Name": "pods"}`, "windows", nil},
		{backend.KindOf("vxlan"), `{"VNI": 65535, "Port": 4789}`, "windows", nil},
		{backend.KindOf("vxlan"), `{"VNI": 65536, "Port": 4789}`, "windows", []string{"65536 65535"}},
		{backend.KindOf("vxlan"), `{}`, "windows", []string{"VNI: 4096 1 Linux", "Port: 4789 8472"}},
		{backend.KindOf("vxlan"), `{"DirectRouting": true, "GBP": true, "MTU": 1400, "VNI": 4096, "Port": 4789}`, "windows",
			[]string{"DirectRouting: Windows", "GBP: Windows", "MTU: Windows"}},
	} {
		o := conf.Parse([]byte(test.config))
		test.kind.Parse(o, test.os)
		got := o.Warnings()
		if err := o.Err(); err != nil || len(got) != len(test.want) {
			t.Errorf("%s on %s: %v, warnings %q", test.config, test.os, err, got)
			continue
		}
		for i, want := range test.want {
			if !logtest.Names(got[i], strings.Fields(want)...) {
				t.Errorf("%s on %s warns %q, want %q", test.config, test.os, got[i], want)
			}
		}
	}
}
