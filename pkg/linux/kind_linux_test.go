package linux

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vishvananda/netlink"

	"flannel/pkg/conf"
	"flannel/pkg/dataplane"
	"flannel/pkg/linux/guard"
	"flannel/pkg/reconcile"
)

// unconnected returns a driver that does not reach the kernel.
func unconnected(desired ...dataplane.Device) *Driver {
	opts := dataplane.Options{Log: slog.New(slog.DiscardHandler)}
	h := host{opts: opts, devices: &devices{desired: desired, sysctls: newSysctls(opts)}, notify: func() {}}
	h.scope.Store(&scope{})
	h.rows = newRows(nil, &h.scope, "")
	d := &Driver{opts: opts, devices: h.devices, rows: h.rows, kinds: newKinds(h), guard: &guarding{opts: opts}, bridges: &formerBridges{devices: h.devices}}
	d.tables = d.allTables()
	return d
}

// Entries are added in this order, and deleted in the reverse one: a route comes after what it leads to, and IPsec's
// connections come after the policies that drop packets until there are keys.
func TestOrderOfTables(t *testing.T) {
	var got []string
	for _, table := range unconnected().tables {
		got = append(got, table.Name())
	}
	want := []string{"nexthops", "fdb", "neighbours", "wireguard", "udp-peers", "routes", "policies", "connections"}
	if !slices.Equal(got, want) {
		t.Errorf("the tables are %q, want %q", got, want)
	}
}

// Another secret, or another property of the device, is in all connections at once. What has no peer is dropped as before.
func TestEntriesOfAnotherIPsecDevice(t *testing.T) {
	own, peer := netip.MustParsePrefix("10.5.1.0/24"), netip.MustParsePrefix("10.5.2.0/24")
	device := dataplane.IPsec{Local: netip.MustParseAddr("192.168.100.1"), Subnet: own, Secret: conf.NewSecret("a")}
	d := unconnected(dataplane.Device{Name: "eth0", Kind: device})
	s := dataplane.State{Networks: []netip.Prefix{v4Network}, Subnets: []netip.Prefix{own}, Paths: []*dataplane.Path{
		{Dst: peer, Via: netip.MustParseAddr("192.168.100.2"), Device: "eth0", Encap: dataplane.ESP{}},
	}}
	key := ikeKey{device.Local, s.Paths[0].Via, own, peer}
	block := policyKey{netlink.XFRM_DIR_OUT, own, v4Network}
	wanted := func() ikeConn {
		t.Helper()
		d.begin(dataplane.Links{"eth0": {Index: 2}}, s)
		if err := d.want(s); err != nil {
			t.Fatal(err)
		}
		if p, wanted := kindIn[*ipsec](d).policies.Desired(block); !wanted || p.Priority != blockPriority {
			t.Errorf("nothing drops what has no peer: %v", p)
		}
		conn, _ := kindIn[*ipsec](d).ikes.Desired(key)
		return conn
	}
	first := wanted()
	if again := wanted(); again != first || first == (ikeConn{}) {
		t.Errorf("the connections are %v and %v", first, again)
	}
	device.Secret = conf.NewSecret("b")
	d.desired[0].Kind = device
	if second := wanted(); second == first || second == (ikeConn{}) {
		t.Errorf("with another secret, the connection is %v as before", second)
	}
}

// The guard is told the packets of each tunnel.
func TestGuardConfigOfKinds(t *testing.T) {
	tunnel := dataplane.Tunnel{Addr: []netip.Prefix{netip.MustParsePrefix("10.5.1.0/32")}}
	opts := cmp.Options{cmpopts.IgnoreUnexported(guard.Config{}), cmpopts.EquateComparable(netip.Addr{}),
		cmpopts.IgnoreFields(dataplane.Traits{}, "Kind", "Backend", "Links", "Name", "MTUKey")} // which say nothing about packets
	for name, test := range map[string]struct {
		kind dataplane.Kind
		want guard.Config
	}{
		"existing": {dataplane.Existing{}, guard.Config{Routed: true}},
		"vxlan": {dataplane.VXLAN{VNI: 7}, guard.Config{Routed: true, Tunnels: []string{"a", "b"},
			Outer: dataplane.Traits{Protocol: 17, Port: 8472, VNI: 7, Header: 30, Frame: true}}},
		"wireguard": {dataplane.WireGuard{Port: 51820}, guard.Config{Routed: true, Tunnels: []string{"a", "b"}}},
		"ipip":      {dataplane.IPIP{}, guard.Config{Routed: true, Tunnels: []string{"a", "b"}, Outer: dataplane.Traits{Protocol: 4}}},
		"tun": {dataplane.TUN{Tunnel: tunnel, Port: 9000}, guard.Config{Routed: true, Tunnels: []string{"a", "b"}, Outer: dataplane.Traits{Protocol: 17, Port: 9000, Header: 8},
			Errors: []netip.Addr{tunnel.Addr[0].Addr(), tunnel.Addr[0].Addr()}}},
		"ipsec": {dataplane.IPsec{}, guard.Config{}},
	} {
		d := unconnected(dataplane.Device{Name: "a", Kind: test.kind}, dataplane.Device{Name: "b", Kind: test.kind})
		got := d.guardConfig(dataplane.Links{"a": {Index: 2}, "b": {Index: 3}}, dataplane.State{Guard: &dataplane.Guard{}})
		if diff := cmp.Diff(&test.want, got, opts); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// The doctor finds the traits of what the driver makes, and only of that.
func TestTraitsOfKinds(t *testing.T) {
	for _, row := range kindRows {
		traits := dataplane.TraitsOf(row.device)
		if found := dataplane.TraitsOfBackend(traits.Backend); traits.Protocol != 0 && found.Kind != traits.Kind {
			t.Errorf("%s: the backend %q has the devices %q", traits.Kind, traits.Backend, found.Kind)
		}
		if (traits.Name != nil) != (len(traits.Links) > 0) {
			t.Errorf("%s: the names are %v, and the types of link %q", traits.Kind, traits.Name, traits.Links)
		}
	}
}

// A resync also reads again what notifications of addresses and ports would have told.
func TestResyncOfBridges(t *testing.T) {
	d := unconnected()
	d.bridges.dirty.Store(false)
	if d.QueueResync(); !d.bridges.dirty.Load() {
		t.Error("the bridges are not looked at again")
	}
}

// counted is a store that counts how often it is listed.
type counted[K, V comparable] struct {
	taker[K, V]
	name  string
	lists map[string]int
}

func (c counted[K, V]) List(context.Context) (map[K]V, error) {
	c.lists[c.name]++
	return nil, nil
}

func count[K, V comparable](table **reconcile.Table[K, V], lists map[string]int) {
	name := (*table).Name()
	*table = reconcile.NewTable[K, V](counted[K, V]{name: name, lists: lists})
}

// Other networks concern what is ours by its subnet. A table that does not depend on them is not listed again: it could
// fail, and nothing is deleted then.
func TestOtherNetworksRelist(t *testing.T) {
	d, lists := unconnected(), map[string]int{}
	count(&d.nexthops, lists)
	count(&d.fdb, lists)
	count(&d.neighs, lists)
	count(&d.routes, lists)
	count(&kindIn[*wireguard](d).peers, lists)
	count(&kindIn[*tun](d).datagrams, lists)
	count(&kindIn[*ipsec](d).policies, lists)
	count(&kindIn[*ipsec](d).ikes, lists)
	d.tables = d.allTables()
	for range 2 {
		if err := d.tables.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		d.setNetworks(dataplane.State{Networks: []netip.Prefix{v4Network}})
	}
	clear(lists)
	d.setNetworks(dataplane.State{})
	for range 2 {
		if err := d.tables.Add(t.Context(), d.opts); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(map[string]int{"routes": 1, "policies": 1, "connections": 1}, lists); diff != "" {
		t.Error(diff)
	}
}

// What entries lead to ends after them, whichever kind says so first.
func TestOrderOfLeaving(t *testing.T) {
	var done []string
	add := func(what string) func(context.Context) error {
		return func(context.Context) error {
			done = append(done, what)
			return nil
		}
	}
	l := &leaving{}
	l.end(add("charon"))
	l.step(add("routes"))
	l.end(add("device"))
	if err := l.run(t.Context()); err != nil || !slices.Equal(done, []string{"routes", "charon", "device"}) {
		t.Errorf("%v: %q", err, done)
	}
}
