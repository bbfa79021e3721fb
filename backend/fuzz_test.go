package backend_test

import (
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"flannel/backend"
	"flannel/pkg/conf"
	"flannel/pkg/dataplane"
	"flannel/subnet"
)

// FuzzPeer: what a backend makes of a peer's data is a path that the kernel can take, or one short reason.
func FuzzPeer(f *testing.F) {
	for _, data := range []string{`{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"}`, `{"VtepMAC":"C6-D2-32-6F-8F-44"}`, `{"VNI":4294967297}`, `null`, `[]`, `"x"`,
		`{"VNI":1,"VtepMAC":"ff:ff:ff:ff:ff:ff"}`, `{"VtepMAC":"0000.0000.0000"}`, `{"VtepMAC":"02:00:5e:10:00:00:00:01"}`, `{"vni":1,"VNI":2}`,
		`{"PublicKey":"yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=","Port":51820}`, `{"PublicKey":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="}`} {
		f.Add([]byte(data), "10.5.2.0/24", "192.168.100.2")
		f.Add([]byte(data), "2001:cafe:42:2::/64", "fd00:100::255")
	}
	f.Add([]byte(nil), "10.5.2.0/24", "192.168.100.255")
	backends := map[string]backend.Backend{}
	for _, k := range []struct {
		kind   backend.Kind
		config string
	}{
		{backend.KindOf("vxlan"), `{}`}, {backend.KindOf("vxlan"), `{"DirectRouting":true}`}, {backend.KindOf("wireguard"), `{}`}, {backend.KindOf("wireguard"), `{"Mode":"auto"}`},
		{backend.KindOf("host-gw"), `{}`}, {backend.KindOf("ipip"), `{"DirectRouting":true}`}, {backend.KindOf("ipsec"), `{"PSK":"` + strings.Repeat("x", 96) + `"}`},
		{backend.KindOf("udp"), `{}`}, {backend.KindOf("extension"), `{"SubnetAddCommand":"x"}`}, {backend.KindOf("alloc"), `{}`},
	} {
		object := conf.Parse([]byte(k.config))
		b, _, err := k.kind.Parse(object, "linux")(backend.Node{Underlay: eth0, V4: true, V6: true})
		if err := errors.Join(err, object.Err()); err != nil {
			f.Fatal(err)
		}
		backends[k.kind.Name+" "+k.config] = b
	}
	f.Fuzz(func(t *testing.T, data []byte, network, public string) {
		s, err1 := netip.ParsePrefix(network)
		a, err2 := netip.ParseAddr(public)
		if err1 != nil || err2 != nil || s.Addr().Is6() != a.Is6() { // others look at that
			return
		}
		l := &subnet.Lease{Backend: "x"}
		e := subnet.Endpoint{Subnet: s, PublicIP: a, Data: json.RawMessage(data)}
		if l.V4 = e; s.Addr().Is6() {
			l.V4, l.V6 = subnet.Endpoint{}, e
		}
		for name, b := range backends {
			checkPaths(t, name, b, l, e)
		}
	})
}

// checkPaths checks what a backend makes of a lease with one endpoint.
func checkPaths(t *testing.T, name string, b backend.Backend, l *subnet.Lease, e subnet.Endpoint) {
	paths, err := b.Paths(l)
	if err != nil && (len(err.Error()) > 600 || paths != nil) {
		t.Errorf("%s: %v beside %d bytes: %v", name, paths, len(err.Error()), err)
	}
	for _, p := range paths {
		tunnel, onUnderlay := p.Encap != dataplane.Encap(dataplane.Direct{}), p.Device == eth0.Name
		_, esp := p.Encap.(dataplane.ESP) // it has no device
		end, tunnelled := p.End()
		valid := end.MAC.Unicast()
		if w, is := p.Encap.(dataplane.WireGuardPeer); is {
			_, err := dataplane.ParsePublicKey(w.Key.Base64())
			valid = err == nil && w.Endpoint.Addr() == e.PublicIP && w.Endpoint.Port() != 0 && w.Allowed == [2]netip.Prefix{e.Subnet}
		}
		if p.Dst != e.Subnet || p.Via != e.PublicIP || onUnderlay != (!tunnel || esp) || tunnelled && !valid || !tunnel && !eth0.Reaches(p.Via) {
			t.Errorf("%s %s: %+v", name, e.Data, p)
		}
	}
}
