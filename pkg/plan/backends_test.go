package plan

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"flannel/backend"
	"flannel/internal/test/logtest"
	"flannel/pkg/conf"
	"flannel/pkg/underlay"
	"flannel/subnet"
)

// backendCase is a backend with a configuration and with what a valid peer publishes.
type backendCase struct {
	kind         backend.Kind
	config, data string
	paths        int      // to a valid peer
	odd          []string // invalid data; none: the backend does not read data
}

var eachBackend = []backendCase{
	{backend.KindOf("vxlan"), `{}`, `{"VNI":1,"VtepMAC":"02:00:00:00:00:07"}`, 1, []string{`{"VNI":2,"VtepMAC":"02:00:00:00:00:07"}`, `{"VNI":1,"VtepMAC":"ff:ff:ff:ff:ff:ff"}`, `"x"`, `7`, ``, `{"VNI":1,"VtepMAC":"02:00:00:00:00:07"}`}}, // the last is the MAC of the valid peer
	{backend.KindOf("wireguard"), `{}`, `{"PublicKey":"yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=","Port":51820}`, 1, []string{`{"PublicKey":"AAAA"}`, `{"VNI":1,"VtepMAC":"02:00:00:00:00:07"}`, `{"PublicKey":"yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=","Port":70000}`, `[]`, ``, `{"PublicKey":"yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=","Port":51820}`}},
	{backend.KindOf("extension"), `{"SubnetAddCommand":"add"}`, `"; reboot"`, 1, []string{`{"VNI":1,"VtepMAC":"02:00:00:00:00:07"}`, `7`, `[]`, `{}`}},
	{backend.KindOf("host-gw"), `{}`, ``, 1, nil},
	{backend.KindOf("ipip"), `{}`, ``, 1, nil},
	{backend.KindOf("ipsec"), `{"PSK":"` + strings.Repeat("0123456789abcdef", 6) + `"}`, ``, 1, nil},
	{backend.KindOf("udp"), `{}`, ``, 1, nil},
	{backend.KindOf("alloc"), `{}`, ``, 0, nil},
}

// newPeer returns a lease that is valid except for its arguments.
func (c backendCase) newPeer(v4, ip string) *subnet.Lease {
	l := since(peerLease(v4, ip, 0), 10)
	l.Backend, l.V4.Data = c.kind.Name, nil
	if c.data != "" {
		l.V4.Data = json.RawMessage(c.data)
	}
	return l
}

// rogues are invalid leases beside that of 10.5.50.0/24, which is older.
func (c backendCase) rogues() map[string]*subnet.Lease {
	all := map[string]*subnet.Lease{}
	for ip, v4 := range map[string]string{
		"192.168.100.3": "10.6.3.0/24", "192.168.100.4": "10.5.0.0/16", "192.168.100.5": "0.0.0.0/0",
		"192.168.100.6": "10.5.6.0/32", "192.168.100.8": "10.5.1.128/25", "192.168.100.9": "10.5.0.0/22",
		"192.168.100.12": "10.5.12.9/24",
		"127.0.0.1":      "10.5.20.0/24", "224.0.0.1": "10.5.21.0/24", "255.255.255.255": "10.5.22.0/24", "0.0.0.0": "10.5.23.0/24",
		"169.254.1.1": "10.5.24.0/24", "10.5.25.9": "10.5.25.0/24", "10.5.1.9": "10.5.26.0/24",
		"192.168.100.1": "10.5.27.0/24", "192.168.100.77": "10.5.28.0/24", "fd00:100::2": "10.5.29.0/24",
	} {
		all[v4+" at "+ip] = c.newPeer(v4, ip)
	}
	if c.paths > 0 { // with alloc nothing leads to a peer, so that two of them conflict in nothing
		all["a part of another's subnet"] = c.newPeer("10.5.50.0/25", "192.168.100.10")
		all["a subnet around another's"] = c.newPeer("10.5.48.0/22", "192.168.100.11")
	}
	for i, kind := range []string{"vxlan", "host-gw", "wireguard", "extension", "ipip", "ipsec", "udp", "alloc", "VXLAN", "UDP",
		" ", "\x00", strings.Repeat("x", 1000)} {
		if kind != c.kind.Name {
			l := c.newPeer(fmt.Sprintf("10.5.%d.0/24", 100+i), "192.168.100.66")
			l.Backend = kind
			all[foreignType+kind] = l
		}
	}
	for i, data := range c.odd {
		l := c.newPeer(fmt.Sprintf("10.5.%d.0/24", 120+i), "192.168.100.66")
		l.V4.Data = json.RawMessage(data)
		all["with the data "+data] = l
	}
	for _, l := range all {
		l.Name, l.Since = "rogue", 11
	}
	return all
}

const foreignType = "of the backend "

// With every backend, an invalid lease is rejected by name and with a short reason, and
// keeps no other peer out.
func TestRoguePeersOfEachBackend(t *testing.T) {
	for _, c := range eachBackend {
		t.Run(c.kind.Name, func(t *testing.T) {
			p := c.newPlan(t)
			good := c.newPeer("10.5.50.0/24", "192.168.100.2")
			expect := func(name string, rejected int, rogues ...*subnet.Lease) (rejects []subnet.Rejected) {
				t.Helper()
				paths, rejects := p.Paths(append([]*subnet.Lease{good}, rogues...))
				if len(paths) != c.paths || len(paths) > 0 && paths[0].Dst != good.V4.Subnet || len(rejects) != rejected {
					t.Errorf("%.60q: the paths are %v, rejected are %.2000v", name, paths, rejects)
				}
				return rejects
			}
			expect("a valid peer", 0)
			var all []*subnet.Lease
			rogues := c.rogues()
			for _, name := range slices.Sorted(maps.Keys(rogues)) {
				rogue := rogues[name]
				all = append(all, rogue)
				for _, r := range expect(name, 1, rogue) {
					if r.Name != "rogue" || r.Reason == "" || len(r.Reason) > 400 || strings.ContainsAny(r.Reason, "\x00\n") {
						t.Errorf("%.60q: %s is rejected because of %q", name, r.Name, r.Reason)
					}
					if strings.HasPrefix(name, foreignType) && !logtest.Names(r.Reason, c.kind.Name) {
						t.Errorf("%.60q: it is rejected because of %q", name, r.Reason)
					}
				}
			}
			expect("all together", len(all), all...)
			expect("after all", 0)
		})
	}
}

// newPlan returns the plan of the node 192.168.100.1, which also has the address
// 192.168.100.77.
func (c backendCase) newPlan(t *testing.T) *Plan {
	t.Helper()
	o := conf.Parse([]byte(c.config))
	link := underlay.Link{Name: "eth0", MTU: 1500, V4: netip.MustParseAddr("192.168.100.1"), PublicV4: netip.MustParseAddr("192.168.100.1"),
		OnLink: []netip.Prefix{netip.MustParsePrefix("192.168.100.0/24")}}
	maker := c.kind.Parse(o, "linux")
	if err := o.Err(); err != nil {
		t.Fatal(err)
	}
	b, _, err := maker(backend.Node{V4: true, Underlay: link})
	if err != nil {
		t.Fatal(err)
	}
	own := *c.newPeer("10.5.1.0/24", "192.168.100.1")
	own.V4.Data = nil
	p := New(subnet.Config{V4: network("10.5.0.0/16", 24), Backend: c.kind.Name}, own, b)
	p.SetAddrs([]netip.Addr{netip.MustParseAddr("192.168.100.77")})
	return p
}
