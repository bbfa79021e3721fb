package backend

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"flannel/pkg/conf"
	"flannel/pkg/dataplane"
	"flannel/pkg/underlay"
	"flannel/subnet"
)

const (
	wireguardSecret = "kQ1dWgGuKn2mRZbTr0gBLQ0zbZk0iT4k3nbh5kFq2Hs=" // a preshared key
	keyA            = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk="
	keyB            = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg="
)

var (
	wireguardEth0 = underlay.Link{
		Name: "eth0", Index: 2, MTU: 1500,
		V4: netip.MustParseAddr("192.168.100.1"), V6: netip.MustParseAddr("2001:db8::1"),
		PublicV4: netip.MustParseAddr("192.168.100.1"), PublicV6: netip.MustParseAddr("2001:db8::1"),
	}
	dual           = Node{Underlay: wireguardEth0, V4: true, V6: true}
	v4             = Node{Underlay: without(wireguardEth0, true), V4: true}
	v6             = Node{Underlay: without(wireguardEth0, false), V6: true}
	wireguardLocal = wireguardLease("10.5.1.0/24", "192.168.100.1", "", "2001:cafe:42:1::/64", "2001:db8::1", "")
)

// without returns the link without the addresses of a family that is disabled.
func without(l underlay.Link, v6 bool) underlay.Link {
	if v6 {
		l.V6, l.PublicV6 = netip.Addr{}, netip.Addr{}
	} else {
		l.V4, l.PublicV4 = netip.Addr{}, netip.Addr{}
	}
	return l
}

func wireguardLease(v4, ip4, data4, v6, ip6, data6 string) subnet.Lease {
	l := subnet.Lease{Backend: "wireguard"}
	for _, e := range []struct {
		to               *subnet.Endpoint
		subnet, ip, data string
	}{{&l.V4, v4, ip4, data4}, {&l.V6, v6, ip6, data6}} {
		if e.subnet != "" {
			*e.to = subnet.Endpoint{Subnet: netip.MustParsePrefix(e.subnet), PublicIP: netip.MustParseAddr(e.ip)}
			if e.data != "" {
				e.to.Data = json.RawMessage(e.data)
			}
		}
	}
	return l
}

// show describes all that a backend makes of a configuration, as text.
func showWireGuard(t *testing.T, config string, n Node, peers ...subnet.Lease) string {
	t.Helper()
	o := conf.Parse([]byte(config))
	maker := parseWireGuard(o, "linux")
	if err := o.Err(); err != nil {
		t.Fatal(err)
	}
	b, _, err := maker(n)
	if err != nil {
		t.Fatal(err)
	}
	var s strings.Builder
	fmt.Fprintf(&s, "MTU %d; %s\n", b.MTU(), b.Wire().Name)
	links := dataplane.Links{}
	for _, d := range b.Devices(wireguardLocal) {
		if k, ok := d.Kind.(dataplane.WireGuard); ok {
			fmt.Fprintf(&s, "device %s %v port %d psk %t keepalive %v\n", d.Name, k.Addr, k.Port, k.PSK != conf.Secret{}, k.Keepalive)
		}
		links[d.Name] = dataplane.Link{Index: len(links) + 2, Key: dataplane.PublicKey{9}}
	}
	own := wireguardLocal
	if !n.V4 {
		own.V4 = subnet.Endpoint{}
	}
	if !n.V6 {
		own.V6 = subnet.Endpoint{}
	}
	described, err := b.Describe(own, links)
	fmt.Fprintf(&s, "lease %s %s %s %v\n", described.Backend, described.V4.Data, described.V6.Data, err)
	for _, p := range peers {
		paths, err := b.Paths(&p)
		for _, path := range paths {
			w := path.Encap.(dataplane.WireGuardPeer)
			fmt.Fprintf(&s, "peer %s dev %s key %.4s at %s allowed %v\n", path.Dst, path.Device, w.Key.Base64(), w.Endpoint, w.Allowed)
			if path.Via != w.Endpoint.Addr() {
				t.Errorf("%s: via %s, but the endpoint is %s", path.Dst, path.Via, w.Endpoint)
			}
		}
		if err != nil {
			fmt.Fprintln(&s, "peer refused")
		}
	}
	return s.String()
}

func TestWireGuardGolden(t *testing.T) {
	const published = `{"PublicKey":"CQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=","Port":%d}`
	peer := wireguardLease("10.5.2.0/24", "192.168.100.2", `{"PublicKey":"`+keyA+`","Port":51820}`, "2001:cafe:42:2::/64", "2001:db8::2", `{"PublicKey":"`+keyA+`","Port":51821}`)
	noPort := wireguardLease("10.5.3.0/24", "192.168.100.3", `{"PublicKey":"`+keyB+`"}`, "", "", "")
	moved := wireguardLease("", "", "", "2001:cafe:42:4::/64", "2001:db8::4", `{"PublicKey":"`+keyB+`","Port":4501}`) // with another ListenPort
	for name, c := range map[string]struct {
		config string
		node   Node
		peers  []subnet.Lease
		want   string
	}{
		"separate": {`{}`, dual, []subnet.Lease{peer, noPort}, `MTU 1420; wireguard, one device per family
device flannel-wg [10.5.1.0/32] port 51820 psk false keepalive 0s
device flannel-wg-v6 [2001:cafe:42:1::/128] port 51821 psk false keepalive 0s
lease wireguard ` + fmt.Sprintf(published, 51820) + " " + fmt.Sprintf(published, 51821) + ` <nil>
peer 10.5.2.0/24 dev flannel-wg key yAnz at 192.168.100.2:51820 allowed [10.5.2.0/24 invalid Prefix]
peer 2001:cafe:42:2::/64 dev flannel-wg-v6 key yAnz at [2001:db8::2]:51821 allowed [2001:cafe:42:2::/64 invalid Prefix]
peer 10.5.3.0/24 dev flannel-wg key xTIB at 192.168.100.3:51820 allowed [10.5.3.0/24 invalid Prefix]
`},
		"separate, IPv6 only": {`{"ListenPortV6":1000}`, v6, []subnet.Lease{peer, noPort}, `MTU 1420; wireguard, one device per family
device flannel-wg-v6 [2001:cafe:42:1::/128] port 1000 psk false keepalive 0s
lease wireguard  ` + fmt.Sprintf(published, 1000) + ` <nil>
peer 2001:cafe:42:2::/64 dev flannel-wg-v6 key yAnz at [2001:db8::2]:51821 allowed [2001:cafe:42:2::/64 invalid Prefix]
`},
		"ipv6, with a flannel as the peer": {`{"Mode":"ipv6","PSK":"` + wireguardSecret + `","PersistentKeepaliveInterval":25,"MTU":1400}`, dual, []subnet.Lease{peer, noPort}, `MTU 1320; wireguard, one device, preshared key with fingerprint ` + fmt.Sprintf("%x", fingerprint(parsePSK(conf.Parse([]byte(`{"PSK":"`+wireguardSecret+`"}`))))) + `
device flannel-wg [10.5.1.0/32 2001:cafe:42:1::/128] port 51820 psk true keepalive 25s
lease wireguard ` + fmt.Sprintf(published, 51820) + " " + fmt.Sprintf(published, 51820) + ` <nil>
peer 10.5.2.0/24 dev flannel-wg key yAnz at [2001:db8::2]:51820 allowed [10.5.2.0/24 2001:cafe:42:2::/64]
peer 2001:cafe:42:2::/64 dev flannel-wg key yAnz at [2001:db8::2]:51820 allowed [10.5.2.0/24 2001:cafe:42:2::/64]
peer refused
`},
		"auto, IPv6 only, with a flannel as the peer": {`{"Mode":"auto","ListenPort":4500}`, v6, []subnet.Lease{peer, moved}, `MTU 1420; wireguard, one device
device flannel-wg [2001:cafe:42:1::/128] port 4500 psk false keepalive 0s
lease wireguard  ` + fmt.Sprintf(published, 4500) + ` <nil>
peer 2001:cafe:42:2::/64 dev flannel-wg key yAnz at [2001:db8::2]:4500 allowed [2001:cafe:42:2::/64 invalid Prefix]
peer 2001:cafe:42:4::/64 dev flannel-wg key xTIB at [2001:db8::4]:4501 allowed [2001:cafe:42:4::/64 invalid Prefix]
`},
		"ipv4, IPv4 only": {`{"Mode":"ipv4","ListenPort":4500}`, v4, []subnet.Lease{peer, noPort}, `MTU 1420; wireguard
device flannel-wg [10.5.1.0/32] port 4500 psk false keepalive 0s
lease wireguard ` + fmt.Sprintf(published, 4500) + `  <nil>
peer 10.5.2.0/24 dev flannel-wg key yAnz at 192.168.100.2:51820 allowed [10.5.2.0/24 invalid Prefix]
peer 10.5.3.0/24 dev flannel-wg key xTIB at 192.168.100.3:4500 allowed [10.5.3.0/24 invalid Prefix]
`},
	} {
		t.Run(name, func(t *testing.T) {
			if got := showWireGuard(t, c.config, c.node, c.peers...); got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}

// The address at which mode auto reaches a peer.
func TestWireGuardAuto(t *testing.T) {
	const data = `{"PublicKey":"` + keyA + `","Port":1}`
	ula := dual
	ula.Underlay.PublicV6 = netip.MustParseAddr("fd00::1")
	for _, c := range []struct {
		what     string
		node     Node
		ip4, ip6 string
		want     string
	}{
		{"private IPv4, global IPv6", dual, "192.168.100.2", "2001:db8::2", "2001:db8::2"},
		{"public IPv4", dual, "203.0.113.2", "2001:db8::2", "203.0.113.2"},
		{"the peer's IPv6 address is unique local", dual, "10.0.0.2", "fd00::2", "10.0.0.2"},
		{"ours is unique local", ula, "172.16.0.2", "2001:db8::2", "172.16.0.2"},
		{"the peer has no IPv6 address", dual, "192.168.100.2", "", "192.168.100.2"},
		{"we have no IPv4 address", v6, "203.0.113.2", "2001:db8::2", "2001:db8::2"},
		{"we have no IPv6 address", v4, "192.168.100.2", "2001:db8::2", "192.168.100.2"},
	} {
		peer := wireguardLease("10.5.2.0/24", c.ip4, data, "", "", "")
		if c.ip6 != "" {
			peer = wireguardLease("10.5.2.0/24", c.ip4, data, "2001:cafe:42:2::/64", c.ip6, data)
		}
		if got := showWireGuard(t, `{"Mode":"auto"}`, c.node, peer); !strings.Contains(got, " at "+netip.AddrPortFrom(netip.MustParseAddr(c.want), 1).String()+" ") {
			t.Errorf("%s: want %s\n%s", c.what, c.want, got)
		}
	}
}

func TestWireGuardRefusedPeers(t *testing.T) {
	b, _, err := parseWireGuard(conf.Parse([]byte(`{"Mode":"auto"}`)), "linux")(dual)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][2]string{
		"no data":                  {"", ""},
		"vxlan's":                  {`{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"}`, ""},
		"no object":                {`"x"`, ""},
		"a port too large":         {`{"PublicKey":"` + keyA + `","Port":65536}`, ""},
		"a negative port":          {`{"PublicKey":"` + keyA + `","Port":-1}`, ""},
		"a short key":              {`{"PublicKey":"` + keyA[:40] + `"}`, ""},
		"a long key":               {`{"PublicKey":"AAAA` + keyA + `"}`, ""},
		"no base64":                {`{"PublicKey":"` + strings.Repeat("!", 44) + `"}`, ""},
		"a second form of one key": {`{"PublicKey":"` + keyA[:42] + "l=" + `"}`, ""},
		"the key zero":             {`{"PublicKey":"` + strings.Repeat("A", 43) + `="}`, ""},
		"the key one":              {`{"PublicKey":"AQ` + strings.Repeat("A", 41) + `="}`, ""},
		"two keys for one device":  {`{"PublicKey":"` + keyA + `"}`, `{"PublicKey":"` + keyB + `"}`},
	} {
		peer := wireguardLease("10.5.2.0/24", "192.168.100.2", data[0], "", "", "")
		if data[1] != "" {
			peer = wireguardLease("10.5.2.0/24", "192.168.100.2", data[0], "2001:cafe:42:2::/64", "2001:db8::2", data[1])
		}
		if paths, err := b.Paths(&peer); err == nil || paths != nil || len(err.Error()) > 200 {
			t.Errorf("%s: %v, %v", name, paths, err)
		}
	}
}

// Every key is checked, and a problem names its key, but never shows a preshared key.
func TestWireGuardProblems(t *testing.T) {
	for config, key := range map[string]string{
		`{"ListenPort":0}`:                           "ListenPort",
		`{"ListenPort":65536}`:                       "ListenPort",
		`{"ListenPortV6":"51821"}`:                   "ListenPortV6",
		`{"MTU":655}`:                                "MTU",
		`{"PersistentKeepaliveInterval":-1}`:         "PersistentKeepaliveInterval",
		`{"PersistentKeepaliveInterval":70000}`:      "PersistentKeepaliveInterval",
		`{"Mode":"Separate"}`:                        "Mode",
		`{"Mode":""}`:                                "Mode",
		`{"PSK":"` + wireguardSecret[:43] + `"}`:     "PSK",
		`{"PSK":"` + wireguardSecret[:20] + `"}`:     "PSK",
		`{"PSK":["` + wireguardSecret + `"]}`:        "PSK",
		`{"PSK":"` + strings.Repeat("A", 43) + `="}`: "PSK",
	} {
		o := conf.Parse([]byte(config))
		parseWireGuard(o, "linux")
		err := o.Err()
		if err == nil || !strings.Contains(err.Error(), key) || strings.Contains(err.Error(), wireguardSecret[:20]) {
			t.Errorf("%s: %v", config, err)
		}
	}
	o := conf.Parse([]byte(`{"Type":"wireguard"}`))
	if parseWireGuard(o, "windows"); o.Err() == nil {
		t.Error("it is accepted on Windows")
	}
	small, noV6 := dual, dual
	small.Underlay.MTU, noV6.Underlay = 1359, without(wireguardEth0, true)
	for config, n := range map[string]Node{
		`{}`: small, `{"MTU":1359}`: dual, `{"ListenPortV6":51820}`: dual, `{"Mode":"ipv4"}`: v6, `{"Mode":"ipv6"}`: noV6,
	} {
		if _, _, err := parseWireGuard(conf.Parse([]byte(config)), "linux")(n); err == nil {
			t.Errorf("%s is accepted on %+v", config, n.Underlay)
		}
	}
	// The addresses of a family that pods do not have are not known.
	if _, _, err := parseWireGuard(conf.Parse([]byte(`{"Mode":"ipv6"}`)), "linux")(v4); err == nil || !strings.Contains(err.Error(), "EnableIPv6") {
		t.Errorf("mode ipv6 with IPv4 pods: %v", err)
	}
}

// Nodes with different preshared keys do not reach each other, and the difference shows
// no key. Nor do nodes with one device and with two or, with IPv6 only, with one device and
// mode separate: the port of the other one's lease is read as that of a flannel.
func TestWireGuardWire(t *testing.T) {
	wire := func(config string, n Node) Wire {
		b, _, err := parseWireGuard(conf.Parse([]byte(config)), "linux")(n)
		if err != nil {
			t.Fatal(err)
		}
		return b.Wire()
	}
	plain, withPSK := wire(`{}`, dual), wire(`{"PSK":"`+wireguardSecret+`"}`, dual)
	if plain == withPSK || withPSK != wire(`{"PSK":"`+wireguardSecret+`","ListenPort":7,"PersistentKeepaliveInterval":9}`, dual) ||
		plain == wire(`{"Mode":"auto"}`, dual) || wire(`{"Mode":"ipv6"}`, dual) != wire(`{"Mode":"auto"}`, dual) || strings.Contains(withPSK.Name, wireguardSecret[:8]) {
		t.Errorf("%+v and %+v", plain, withPSK)
	}
	for n, differ := range map[*Node]bool{&v4: false, &v6: true, &dual: true} {
		if separate, one := wire(`{}`, *n), wire(`{"Mode":"auto"}`, *n); differ != (separate != one) {
			t.Errorf("IPv4: %t, IPv6: %t: %+v and %+v", n.V4, n.V6, separate, one)
		}
	}
	b, _, _ := parseWireGuard(conf.Parse([]byte(`{"PSK":"`+wireguardSecret+`","PersistentKeepaliveInterval":7}`)), "linux")(dual)
	raw, err := json.Marshal(b.Devices(wireguardLocal))
	if text := fmt.Sprintf("%+v %#v %v", b, b.Devices(wireguardLocal), b.Devices(wireguardLocal)) + string(raw); err != nil || strings.Contains(text, "0x91, 0xd") || strings.Contains(text, "145 13 93") || strings.Contains(text, "kQ1d") || strings.Contains(text, "145,13") {
		t.Error("a backend or a device shows the preshared key")
	}
	if k := b.Devices(wireguardLocal)[1].Kind.(dataplane.WireGuard); k.Keepalive != 7*time.Second || k.PSK.Reveal()[0] != 0x91 {
		t.Error("the device lacks keepalive or preshared key")
	}
}
