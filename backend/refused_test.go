package backend_test

import (
	"strings"
	"testing"

	"flannel/backend"
	"flannel/backend/extension"
	"flannel/backend/hostgw"
	"flannel/backend/ipip"
	"flannel/backend/udp"
	"flannel/backend/vxlan"
	"flannel/internal/test/logtest"
	"flannel/pkg/conf"
	"flannel/pkg/dataplane"
)

func TestRefusedLeaseData(t *testing.T) {
	b, _ := make1(t, vxlan.Kind(), `{}`, "linux", backend.Node{Underlay: eth0, V4: true})
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
	b, _ := make1(t, extension.Kind(), `{"SubnetAddCommand": "add"}`, "linux", backend.Node{Underlay: eth0, V4: true, V6: true})
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
		{vxlan.Kind(), `{"VNI": 16777216}`, "linux", 1500, false, "VNI: 16777216 16777215"},
		{vxlan.Kind(), `{"VNI": 0}`, "linux", 1500, false, "VNI: 0 1"},
		{vxlan.Kind(), `{"VNI": 4095}`, "windows", 1500, false, "VNI: 4095 4096"},
		{vxlan.Kind(), `{"VNI": 16777216}`, "windows", 1500, false, "VNI: 16777216 16777215"},
		{vxlan.Kind(), `{"MacPrefix": "0E2A"}`, "windows", 1500, false, `MacPrefix: "0E2A" 0E-2A`},
		{vxlan.Kind(), `{"MacPrefix": "0F-2A"}`, "windows", 1500, false, "MacPrefix: 0F-2A"},
		{vxlan.Kind(), `{"Name": "a\nb"}`, "windows", 1500, false, `Name: "a\nb"`},
		{hostgw.Kind(), `{"DNSServerList": "10.96.0.10;10.96.0.11"}`, "windows", 1500, false, "DNSServerList: 10.96.0.10;10.96.0.11 IP"},
		{vxlan.Kind(), `{"Port": 70000}`, "linux", 1500, false, "Port: 70000 65535"},
		{vxlan.Kind(), `{"Port": -1}`, "linux", 1500, false, "Port: -1 0"},
		{vxlan.Kind(), `{"VNI": 9999999}`, "linux", 1500, false, ""},
		{vxlan.Kind(), `{"VNI": 10000000}`, "linux", 1500, false, "Linux 15 VNI 7"},
		{vxlan.Kind(), `{"VNI": 10000}`, "linux", 1500, true, "VNI 4"},
		{vxlan.Kind(), `{"VNI": 10000000}`, "windows", 1500, false, ""},
		{vxlan.Kind(), `{"MTU": -5}`, "linux", 1500, false, "MTU: -5 0"},
		{vxlan.Kind(), `{"MTU": 600}`, "linux", 1500, false, "MTU: 600 576"},
		{vxlan.Kind(), `{"MTU": 1300}`, "linux", 1500, true, "1230 VXLAN 70 1280 1350"},
		{vxlan.Kind(), `{}`, "linux", 600, false, "550"},
		{hostgw.Kind(), `{}`, "linux", 1000, true, "1280"},
		{ipip.Kind(), `{}`, "linux", 596, false, ""},
		{extension.Kind(), `{}`, "linux", 1500, false, "SubnetAddCommand PostStartupCommand alloc"},
		{extension.Kind(), `{"SubnetAddCommand": " "}`, "windows", 1500, false, "SubnetAddCommand PostStartupCommand alloc"},
		{extension.Kind(), `{"SubnetAddCommand": "x"}`, "windows", 1500, false, ""},
		{extension.Kind(), `{"SubnetAddCommand": "x"}`, "linux", 500, false, "500 576"},
		{extension.Kind(), `{"SubnetAddCommand": ["x"]}`, "linux", 1500, false, "SubnetAddCommand:"},
		{ipip.Kind(), `{}`, "linux", 595, false, "eth0 595 575 20 596"},
		{ipip.Kind(), `{}`, "windows", 1500, false, "Type: Linux Windows vxlan"},
		{ipip.Kind(), `{"DirectRouting": "maybe"}`, "linux", 1500, false, `DirectRouting: "maybe"`},
		{udp.Kind(), `{"Port": 0}`, "linux", 1500, false, "Port: 0 1"},
		{udp.Kind(), `{"Port": 65536}`, "linux", 1500, false, "Port: 65536 65535"},
		{udp.Kind(), `{}`, "linux", 603, false, "eth0 603 575 576 604"},
		{udp.Kind(), `{}`, "linux", 604, false, ""},
		{udp.Kind(), `{}`, "windows", 1500, false, "Type: udp Windows vxlan host-gw"},
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
	if _, warnings := make1(t, vxlan.Kind(), `{"MTU": 9000}`, "linux", backend.Node{Underlay: eth0, V4: true}); len(warnings) != 1 || !logtest.Names(warnings[0], "9000", "eth0") {
		t.Errorf("an MTU above the underlay's gives the warnings %q", warnings)
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
		{vxlan.Kind(), `{"MacPrefix": "anything", "Name": "a\nb"}`, "linux", nil},
		{hostgw.Kind(), `{"DNSServerList": "anything", "Name": "cbr0"}`, "linux", nil},
		{extension.Kind(), `{"SubnetAddCommand": "x", "ShutdownCommand": "y"}`, "linux", []string{"ShutdownCommand: flannel"}},
		{vxlan.Kind(), `{"VNI": 4096, "Port": 4789, "Learning": true, "MacPrefix": "0E-2A", "Name": "pods"}`, "windows", nil},
		{vxlan.Kind(), `{"VNI": 65535, "Port": 4789}`, "windows", nil},
		{vxlan.Kind(), `{"VNI": 65536, "Port": 4789}`, "windows", []string{"65536 65535"}},
		{vxlan.Kind(), `{}`, "windows", []string{"VNI: 4096 1 Linux", "Port: 4789 8472"}},
		{vxlan.Kind(), `{"DirectRouting": true, "GBP": true, "MTU": 1400, "VNI": 4096, "Port": 4789}`, "windows",
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
