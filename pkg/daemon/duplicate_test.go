package daemon

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"flannel/backend"
	"flannel/pkg/conf"
	"flannel/pkg/dataplane"
	"flannel/pkg/plan"
	"flannel/pkg/reconcile"
	"flannel/subnet"
)

// nodeWithMAC is a node whose device has a MAC address that an older lease has, too.
func nodeWithMAC(t *testing.T, u *fixedUnderlay, os, config string) *pass {
	t.Helper()
	b, _, err := backend.KindOf("vxlan").Parse(conf.Parse([]byte(config)), os)(backend.Node{Underlay: u.link, V4: true})
	if err != nil {
		t.Fatal(err)
	}
	n := &node{backend: b, readdressed: map[string]bool{}, config: subnet.Config{Backend: "vxlan",
		V4: subnet.Network{Prefix: netip.MustParsePrefix("10.5.0.0/16"), SubnetLen: 24}}}
	n.lease = subnet.Lease{Name: "us", Since: 5, V4: subnet.Endpoint{Subnet: netip.MustParsePrefix("10.5.1.0/24"), PublicIP: u.link.PublicV4}}
	links := dataplane.Links{}
	for _, dev := range b.Devices(n.lease) {
		links[dev.Name] = dataplane.Link{Index: 7, MTU: 1450, MAC: dataplane.MAC{2, 0, 0, 0, 0, 9}}
	}
	if n.lease, err = b.Describe(n.lease, links); err != nil {
		t.Fatal(err)
	}
	n.plan = plan.New(n.config, n.lease, b)
	return &pass{node: n, links: links}
}

func TestDuplicateMAC(t *testing.T) {
	older := &subnet.Lease{Name: "older", Since: 4, Backend: "vxlan", V4: subnet.Endpoint{Subnet: netip.MustParsePrefix("10.5.2.0/24"),
		PublicIP: netip.MustParseAddr("192.168.0.2"), Data: json.RawMessage(`{"VtepMAC":"02:00:00:00:00:09"}`)}}
	younger := *older
	younger.Name, younger.Since = "younger", 6
	for _, c := range []struct {
		os, config, device string
		peer               *subnet.Lease
		readdress, fix     bool
	}{
		{"linux", `{}`, "flannel.1", older, true, false},
		{"linux", `{}`, "flannel.1", &younger, false, false},
		{"windows", `{"VNI": 4096, "Port": 4789}`, "flannel.4096", older, false, true},
		{"windows", `{"VNI": 4096, "Port": 4789}`, "flannel.4096", &younger, false, false},
	} {
		d, u, log := newDaemon(t)
		p, duplicates := nodeWithMAC(t, u, c.os, c.config), newDuplicates(d.Log)
		name := fmt.Sprintf("%s, the peer is %s", c.os, c.peer.Name)
		for range 2 { // it is logged once
			if planned := p.plan.Update([]*subnet.Lease{c.peer}, nil); len(planned.Rejects) != 1 {
				t.Errorf("%s: rejected %v, want the peer", name, planned.Rejects)
			}
			_ = duplicates.resolve(t.Context(), p)
		}
		for _, dev := range p.devices() {
			if want := c.readdress && dev.Name == c.device; dev.Readdress != want {
				t.Errorf("%s: %s is readdressed: %t", name, dev.Name, dev.Readdress)
			}
		}
		if got := !p.due.IsZero(); got != c.readdress {
			t.Errorf("%s: another pass is due: %t", name, got)
		}
		lines := log.Count("level=WARN")
		if want := c.readdress || c.fix; (lines == 1) != want || lines > 1 || want && log.Count("cause="+causeDuplicateMAC, "peer=older") != 1 {
			t.Errorf("%s: the log has\n%s", name, log)
		}
		p.plan.Update(nil, []reconcile.Change[subnet.Lease]{{Old: c.peer}})
		if _ = duplicates.resolve(t.Context(), p); len(duplicates.told) != 0 {
			t.Errorf("%s: remembers a peer that is gone: %s", name, duplicates.told)
		}
	}
}

// A node that gets another subnet takes the MAC address that goes with it: the owner of the former subnet derives the
// one that the device may still have. A subnet of a family that is off now concerns no device.
func TestAnotherSubnetAnotherMAC(t *testing.T) {
	for _, c := range []struct {
		before, before6 string
		want            bool
	}{{"", "", false}, {"10.5.1.0/24", "", false}, {"10.5.9.0/24", "", true}, {"10.5.1.0/24", "fd00:5:0:1::/64", false}} {
		d, _, _ := newDaemon(t)
		d.Parse = parseVXLAN
		d.Manager = &movingManager{subnets: []netip.Prefix{netip.MustParsePrefix("10.5.1.0/24")}}
		d.Settings.SubnetFile = t.TempDir() + "/subnet.env"
		if c.before != "" {
			env := subnet.Env{V4Network: netip.MustParsePrefix("10.5.0.0/16"), V4Subnet: netip.MustParsePrefix(c.before), MTU: 1450}
			if c.before6 != "" {
				env.V6Network, env.V6Subnet = netip.MustParsePrefix("fd00:5::/48"), netip.MustParsePrefix(c.before6)
			}
			if _, err := subnet.WriteEnv(d.Settings.SubnetFile, env); err != nil {
				t.Fatal(err)
			}
		}
		in := newInbox()
		in.setConfig([]byte(`{}`))
		n := d.join(t.Context(), in)
		for _, dev := range n.devices() {
			_, tunnel := dev.Kind.(dataplane.VXLAN)
			if want := c.want && tunnel; dev.Readdress != want {
				t.Errorf("%s after %q: readdressed %t, want %t", dev.Name, c.before, dev.Readdress, want)
			}
		}
	}
}

func parseVXLAN(raw []byte) (subnet.Config, backend.Maker, []string, error) {
	o := conf.Parse(raw)
	config := subnet.Config{Backend: "vxlan", V4: subnet.Network{Prefix: netip.MustParsePrefix("10.5.0.0/16"), SubnetLen: 24}}
	return config, backend.KindOf("vxlan").Parse(o, "linux"), nil, o.Err()
}

// wireGuardNode is a node with a WireGuard key.
func wireGuardNode(t *testing.T, u *fixedUnderlay, key string) *pass {
	t.Helper()
	b, _, err := backend.KindOf("wireguard").Parse(conf.Parse([]byte(`{}`)), "linux")(backend.Node{Underlay: u.link, V4: true})
	if err != nil {
		t.Fatal(err)
	}
	n := &node{backend: b, readdressed: map[string]bool{}, config: subnet.Config{Backend: "wireguard",
		V4: subnet.Network{Prefix: netip.MustParsePrefix("10.5.0.0/16"), SubnetLen: 24}}}
	n.lease = subnet.Lease{Name: "us", Since: 5, V4: subnet.Endpoint{Subnet: netip.MustParsePrefix("10.5.1.0/24"), PublicIP: u.link.PublicV4}}
	p := &pass{node: n}
	setKey(t, p, key)
	return p
}

// setKey does what a pass does after the dataplane has replaced the key.
func setKey(t *testing.T, p *pass, key string) {
	t.Helper()
	public, err := dataplane.ParsePublicKey(key)
	if err != nil {
		t.Fatal(err)
	}
	p.links = dataplane.Links{}
	for _, dev := range p.backend.Devices(p.lease) {
		p.links[dev.Name] = dataplane.Link{Index: 7, MTU: 1420, Key: public}
	}
	if p.lease, err = p.backend.Describe(p.lease, p.links); err != nil {
		t.Fatal(err)
	}
	p.plan = plan.New(p.config, p.lease, p.backend)
}

// Of two nodes with one WireGuard key, the younger one replaces its key, once. If an older
// lease has the new key, too, it is a copy: the key stays, and that is logged once for each
// such lease.
func TestDuplicateKey(t *testing.T) {
	const cloned, fresh = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=", "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg="
	peer := func(name string, since int64, key string) *subnet.Lease {
		return &subnet.Lease{Name: name, Since: since, Backend: "wireguard", V4: subnet.Endpoint{Subnet: netip.MustParsePrefix("10.5.2.0/24"),
			PublicIP: netip.MustParseAddr("192.168.0.2"), Data: json.RawMessage(`{"PublicKey":"` + key + `","Port":51820}`)}}
	}
	d, u, log := newDaemon(t)
	p, duplicates := wireGuardNode(t, u, cloned), newDuplicates(d.Log)
	expect := func(what string, other *subnet.Lease, readdress, due bool, logged int) {
		t.Helper()
		for range 2 {
			if planned := p.plan.Update([]*subnet.Lease{other}, nil); len(planned.Rejects) != 1 {
				t.Errorf("%s: rejected are %v, want the peer", what, planned.Rejects)
			}
			_ = duplicates.resolve(t.Context(), p)
			p.plan = plan.New(p.config, p.lease, p.backend)
		}
		for _, dev := range p.devices() {
			if _, tunnel := dev.Kind.(dataplane.WireGuard); dev.Readdress != (tunnel && readdress) {
				t.Errorf("%s: the key of %s is replaced: %t", what, dev.Name, dev.Readdress)
			}
		}
		if got := !p.due.IsZero(); got != due {
			t.Errorf("%s: another pass is due: %t", what, got)
		}
		if count := log.Count("level=WARN", "cause="+causeDuplicateKey, "peer="+other.Name); count != logged || log.Count("level=WARN") != logged {
			t.Errorf("%s: the log has\n%s", what, log)
		}
		log.Reset()
		p.due = time.Time{}
	}
	expect("a younger lease has the key", peer("younger", 6, cloned), false, false, 0)
	expect("an older lease has the key", peer("older", 4, cloned), true, true, 1)
	links := p.links
	p.links = nil
	expect("the device is missing, and the lease still has the key", peer("older", 4, cloned), true, false, 0)
	p.links = links
	expect("the key cannot be replaced yet", peer("older", 4, cloned), true, false, 0)
	setKey(t, p, fresh)
	expect("an older lease has the new key", peer("thief", 4, fresh), true, false, 1)
	expect("a younger lease has the new key", peer("younger", 6, fresh), true, false, 0)
	expect("the copy is back", peer("thief", 4, fresh), true, false, 1)
	expect("another copy", peer("another", 3, fresh), true, false, 1)
}

// Copies of the key by different nodes, one in each address family, are logged once for each of them.
func TestTwoCopiesOfTheKey(t *testing.T) {
	const cloned, fresh = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=", "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg="
	d, u, log := newDaemon(t)
	u.link.V6, u.link.PublicV6 = netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::1")
	p, duplicates := wireGuardNode(t, u, cloned), newDuplicates(d.Log)
	p.config.V6 = subnet.Network{Prefix: netip.MustParsePrefix("fd05::/48"), SubnetLen: 64}
	p.lease.V6 = subnet.Endpoint{Subnet: netip.MustParsePrefix("fd05:0:0:1::/64"), PublicIP: u.link.PublicV6}
	b, _, err := backend.KindOf("wireguard").Parse(conf.Parse([]byte(`{}`)), "linux")(backend.Node{Underlay: u.link, V4: true, V6: true})
	if err != nil {
		t.Fatal(err)
	}
	p.backend = b
	peers := func(key string) []*subnet.Lease {
		four := &subnet.Lease{Name: "four", Since: 3, Backend: "wireguard", V4: subnet.Endpoint{Subnet: netip.MustParsePrefix("10.5.2.0/24"),
			PublicIP: netip.MustParseAddr("192.168.0.2"), Data: json.RawMessage(`{"PublicKey":"` + key + `"}`)}}
		six := &subnet.Lease{Name: "six", Since: 4, Backend: "wireguard", V6: subnet.Endpoint{Subnet: netip.MustParsePrefix("fd05:0:0:3::/64"),
			PublicIP: netip.MustParseAddr("fd00::3"), Data: json.RawMessage(`{"PublicKey":"` + key + `"}`)}}
		return []*subnet.Lease{four, six}
	}
	for _, key := range []string{cloned, fresh} {
		log.Reset()
		setKey(t, p, key)
		for range 3 {
			p.plan = plan.New(p.config, p.lease, p.backend)
			p.plan.Update(peers(key), nil)
			_ = duplicates.resolve(t.Context(), p)
		}
		for _, peer := range []string{"four", "six"} {
			if log.Count("cause="+causeDuplicateKey, "peer="+peer) != 1 {
				t.Errorf("with the key %s, %s is not logged once:\n%s", key, peer, log)
			}
		}
	}
}
