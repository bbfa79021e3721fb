package etcd

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"flannel/internal/test/etcdtest"
	"flannel/subnet"
)

// stored is a key of a test: name, owner's address, and whether it is on an etcd lease.
type stored struct {
	name, ip string
	leased   bool
}

// Which of several keys with our address is ours, by the table above type claims. The keys are written in this order,
// so the first one is the oldest.
func TestSeveralKeysOfOurs(t *testing.T) {
	const us, other = "192.168.64.3", "192.168.64.4"
	for _, c := range []struct {
		name string
		file string // the subnet in the subnet file; "": there is no file
		keys []stored
		want string // the key that Acquire uses; "": a new one with a random subnet
		gone string // a key that it deletes
	}{
		{"the file's, and a foreign one that is older and sorts earlier", "10.5.72.0/24",
			[]stored{{"10.5.1.0-24", us, true}, {"10.5.72.0-24", us, true}}, "10.5.72.0-24", ""},
		{"the file's, and a foreign reservation", "10.5.72.0/24",
			[]stored{{"10.5.1.0-24", us, false}, {"10.5.72.0-24", us, true}}, "10.5.72.0-24", ""},
		{"the file's reservation", "10.5.72.0/24",
			[]stored{{"10.5.1.0-24", us, true}, {"10.5.72.0-24", us, false}}, "10.5.72.0-24", ""},
		{"the file's subnet is free, and a foreign lease", "10.5.72.0/24",
			[]stored{{"10.5.1.0-24", us, true}}, "10.5.72.0-24", ""},
		{"the file's subnet is free, and the operator made a reservation", "10.5.72.0/24",
			[]stored{{"10.5.1.0-24", us, false}}, "10.5.1.0-24", ""},
		{"the file's subnet is another node's", "10.5.72.0/24",
			[]stored{{"10.5.1.0-24", us, true}, {"10.5.72.0-24", other, true}}, "10.5.1.0-24", ""},
		{"no file: the oldest", "",
			[]stored{{"10.5.72.0-24", us, true}, {"10.5.1.0-24", us, true}, {"10.5.99.0-24", us, true}}, "10.5.72.0-24", ""},
		{"no file: a reservation is before an older lease", "",
			[]stored{{"10.5.1.0-24", us, true}, {"10.5.72.0-24", us, false}, {"10.5.2.0-24", us, false}}, "10.5.72.0-24", ""},
		{"the former key of the file does not fit", "10.9.1.0/24",
			[]stored{{"10.9.1.0-24", us, true}, {"10.9.2.0-24", us, true}, {"10.9.3.0-24", us, false}}, "", "10.9.1.0-24"},
		{"a reservation of the file does not fit", "10.9.1.0/24", []stored{{"10.9.1.0-24", us, false}}, "", ""},
		{"no file: foreign keys that do not fit", "", []stored{{"10.9.1.0-24", us, true}, {"10.5.0.0-24", us, true}}, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			srv := etcdtest.Start(t)
			st := outside(t, srv)
			for _, k := range c.keys {
				st.putStored(k)
			}
			want := at(us)
			if c.file != "" {
				want.V4.Subnet = netip.MustParsePrefix(c.file)
			}
			n := start(t, srv.Endpoint(), nil)
			l := n.acquire(want)
			if c.want != "" && l.Name != base+"/subnets/"+c.want || subnet.Fits(tenNet, &l) != nil {
				t.Errorf("it uses %s, want %s", l.Name, c.want)
			}
			// Nobody else's key is changed, and each with our address is reported.
			unused := 0
			for _, k := range c.keys {
				raw, _ := st.value(base + "/subnets/" + k.name)
				if gone := raw == ""; gone != (k.name == c.gone) {
					t.Errorf("%s is gone: %t", k.name, gone)
				}
				if k.ip == us && k.name != c.want && k.name != c.gone {
					unused++
				}
			}
			if warned := n.logs.Count("cause="+causeSeveralLeases) > 0; warned != (unused > 0) {
				t.Errorf("%d other keys have our address; reported: %t", unused, warned)
			}
			// Another start, after a boot or not, chooses the same.
			want.V4.Subnet = l.V4.Subnet
			if again := start(t, srv.Endpoint(), nil).acquire(want); again.Name != l.Name {
				t.Errorf("a restart uses %s, before %s", again.Name, l.Name)
			}
		})
	}
}

// More keys with the subnet of the file than a transaction has steps do not keep a node from getting a lease.
func TestManyFormerKeys(t *testing.T) {
	t.Parallel()
	st := outside(t, etcdtest.Start(t))
	for i := range 200 {
		st.putStored(stored{fmt.Sprintf("10.9.1.0-24&2001:cafe:42:%x::-64", i), "192.168.64.3", true})
	}
	want := at("192.168.64.3")
	want.V4.Subnet = netip.MustParsePrefix("10.9.1.0/24")
	if l := start(t, st.Endpoints()[0], nil).acquire(want); subnet.Fits(tenNet, &l) != nil {
		t.Errorf("it uses %v", l.V4.Subnet)
	}
}

// putStored writes a key.
func (s store) putStored(k stored) {
	s.t.Helper()
	var opts []clientv3.OpOption
	if k.leased {
		grant, err := s.Grant(s.t.Context(), 3600)
		must(s.t, err)
		opts = append(opts, clientv3.WithLease(grant.ID))
	}
	s.put("subnets/"+k.name, peer(k.ip), opts...)
}

// The same without IPv4.
func TestForeignKeyIPv6Only(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t)
	st := outside(t, srv)
	value := `{"PublicIP":"0.0.0.0","PublicIPv6":"fc00::1","BackendType":"vxlan","BackendV6Data":` + mac1 + `}`
	st.put("subnets/0.0.0.0-0&2001:cafe:42:1::-64", value)
	st.put("subnets/0.0.0.0-0&2001:cafe:42:9::-64", value)
	want := subnet.Lease{V6: subnet.Endpoint{PublicIP: addr("fc00::1"), Subnet: netip.MustParsePrefix("2001:cafe:42:9::/64")}}
	l, err := start(t, srv.Endpoint(), nil).Acquire(t.Context(), subnet.Config{V6: cafeNet}, want)
	if err != nil || l.V6.Subnet != want.V6.Subnet {
		t.Errorf("got %v, want %v; %v", l.V6.Subnet, want.V6.Subnet, err)
	}
}

// Two hosts with one --public-ip keep the subnets of their files.
func TestTwoHostsWithOneAddress(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t)
	for _, s := range []string{"10.5.72.0/24", "10.5.8.0/24", "10.5.72.0/24", "10.5.8.0/24"} {
		want := at("192.168.64.3")
		want.V4.Subnet = netip.MustParsePrefix(s)
		if l := start(t, srv.Endpoint(), nil).acquire(want); l.V4.Subnet != want.V4.Subnet {
			t.Errorf("got %v, want %v", l.V4.Subnet, want.V4.Subnet)
		}
	}
}

// With one user per node, a compromised node puts the address of another node into its own key, which sorts earlier and is
// older. The other node uses the key that its user may write, with and without a subnet file, and changes no other one.
func TestForeignKeyWithRoles(t *testing.T) {
	t.Parallel()
	srv := secured(t)
	root, rogue := as(t, srv, "root", "root's"), as(t, srv, "node-a", "a's")
	rogue.put("subnets/10.5.1.0-24", peer("192.168.64.2"))
	want := at("192.168.64.2")
	for _, file := range []string{"", "10.5.2.0/24", "10.5.1.0/24", "10.5.77.0/24"} {
		if want.V4.Subnet = (netip.Prefix{}); file != "" {
			want.V4.Subnet = netip.MustParsePrefix(file)
		}
		b := start(t, srv.Endpoint(), login("node-b", "b's"))
		l := b.publish(want, mac2)
		if l.V4.Subnet.String() != "10.5.2.0/24" || b.logs.Count("cause="+causeSeveralLeases) != 1 {
			t.Errorf("file %q: it uses %v, and says\n%s", file, l.V4.Subnet, b.logs)
		}
	}
	if raw, _ := root.value(base + "/subnets/10.5.1.0-24"); raw != peer("192.168.64.2") {
		t.Errorf("the other key is %s", raw)
	}
	// A node whose own key was deleted does not use the foreign one, and names both ways out.
	root.remove("subnets/10.5.2.0-24")
	b := start(t, srv.Endpoint(), login("node-b", "b's"))
	root.leavesNone("a node without a key of its own", func() {
		_, err := b.Acquire(t.Context(), tenNet, at("192.168.64.2"))
		var denied *deniedError
		if !errors.As(err, &denied) || denied.Key != base+"/subnets/10.5.1.0-24" {
			t.Errorf("without a key of its own: %v", err)
		}
	})
	others := root.etcdLeases()
	// With the subnet file, it creates its own key again.
	want.V4.Subnet = netip.MustParsePrefix("10.5.2.0/24")
	if l := b.publish(want, mac2); l.V4.Subnet != want.V4.Subnet {
		t.Errorf("it uses %v", l.V4.Subnet)
	}
	if n := root.etcdLeases() - others; n != 1 {
		t.Errorf("%d etcd leases, want 1", n)
	}
}

// A node whose user may write its reservation only is told after a boot, too, that the reservation lacks a family. It is
// not told to use another node's reservation.
func TestReservationOfOneFamilyWithRoles(t *testing.T) {
	t.Parallel()
	srv := secured(t)
	as(t, srv, "node-a", "a's").put("subnets/10.5.1.0-24", peer("192.168.64.2")) // older
	dual := tenNet
	dual.V6 = cafeNet
	_, err := start(t, srv.Endpoint(), login("node-b", "b's")).Acquire(t.Context(), dual, at("192.168.64.2"))
	if misfit, ok := errors.AsType[*misfitError](err); !ok || misfit.Key != base+"/subnets/10.5.2.0-24" {
		t.Errorf("got %v", err)
	}
}

// A former key of the subnet file that our user may not delete does not prevent the creation of a new one.
func TestFormerKeyWithRoles(t *testing.T) {
	t.Parallel()
	srv := secured(t)
	root := as(t, srv, "root", "root's")
	root.remove("subnets/10.5.2.0-24")
	root.putStored(stored{"10.9.2.0-24", "192.168.64.2", true})
	_, err := root.RoleGrantPermission(t.Context(), "flannel-node-b", base+"/subnets/10.5.", base+"/subnets/10.6.",
		clientv3.PermissionType(clientv3.PermReadWrite))
	must(t, err)
	want := at("192.168.64.2")
	want.V4.Subnet = netip.MustParsePrefix("10.9.2.0/24")
	l := start(t, srv.Endpoint(), login("node-b", "b's")).acquire(want)
	if subnet.Fits(tenNet, &l) != nil {
		t.Errorf("it uses %v", l.V4.Subnet)
	}
	if raw, _ := root.value(base + "/subnets/10.9.2.0-24"); raw == "" {
		t.Error("the former key is gone")
	}
}

// Asking for the permission to write a key changes nothing in the store.
func TestMayWriteChangesNothing(t *testing.T) {
	t.Parallel()
	srv := secured(t)
	root := as(t, srv, "root", "root's")
	b := start(t, srv.Endpoint(), login("node-b", "b's"))
	before, err := root.Get(t.Context(), base+"/subnets/", clientv3.WithPrefix())
	must(t, err)
	for key, want := range map[string]bool{"10.5.1.0-24": false, "10.5.2.0-24": true, "10.5.3.0-24": false} {
		if may, err := b.mayWrite(t.Context(), base+"/subnets/"+key); err != nil || may != want {
			t.Errorf("%s: %t (%v), want %t", key, may, err, want)
		}
	}
	root.remove("subnets/10.5.2.0-24")
	if may, err := b.mayWrite(t.Context(), base+"/subnets/10.5.2.0-24"); err != nil || !may {
		t.Errorf("a missing key: %t (%v)", may, err)
	}
	after, err := root.Get(t.Context(), base+"/subnets/", clientv3.WithPrefix())
	must(t, err)
	if after.Header.Revision != before.Header.Revision+1 || !slices.Equal(after.Kvs[0].Value, before.Kvs[0].Value) {
		t.Errorf("revision %d became %d by one deletion", before.Header.Revision, after.Header.Revision)
	}
}
