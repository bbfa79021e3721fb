package etcd

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"flannel/internal/test/etcdtest"
	"flannel/internal/test/eventually"
	"flannel/internal/test/logtest"
	"flannel/subnet"
)

func TestAcquireAndPublish(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t)
	st := outside(t, srv)
	n := start(t, srv.Endpoint(), nil)
	l := n.acquire(at("192.168.64.3"))
	raw, id := st.value(l.Name)
	if raw != `{"PublicIP":"192.168.64.3","PublicIPv6":null}` || id == 0 || l.Backend != "" {
		t.Fatalf("claimed %+v: stored %s on etcd lease %x", l, raw, id)
	}
	ttl, err := st.TimeToLive(t.Context(), id)
	if err != nil || ttl.GrantedTTL != 86400 {
		t.Fatalf("etcd lease: %+v, %v", ttl, err)
	}
	l.Backend, l.V4.Data = "vxlan", []byte(` { "VNI": 1, "VtepMAC":"c6:d2:32:6f:8f:44"}`)
	for range 2 {
		if err := n.Publish(t.Context(), l); err != nil {
			t.Fatal(err)
		}
	}
	if raw, again := st.value(l.Name); raw != peer("192.168.64.3") || again != id {
		t.Errorf("published %s on etcd lease %x, want %x", raw, again, id)
	}
	resp, _ := st.Get(t.Context(), l.Name)
	if l.Since != resp.Kvs[0].CreateRevision {
		t.Errorf("it is ours since %d, the key is there since %d", l.Since, resp.Kvs[0].CreateRevision)
	}
	if v := resp.Kvs[0].Version; v != 2 {
		t.Errorf("the key was written %d times, want 2", v)
	}
	l.V4.PublicIP = addr("192.168.64.33")
	if err := n.Publish(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	if raw, again := st.value(l.Name); raw != peer("192.168.64.33") || again != id {
		t.Errorf("with another address: %s on etcd lease %x, want %x", raw, again, id)
	}

	// A restart finds it by the address and changes nothing.
	next := start(t, srv.Endpoint(), nil)
	same := next.acquire(at("192.168.64.33"))
	if same.Since != l.Since || !same.Equal(&subnet.Lease{Backend: "vxlan", V4: subnet.Endpoint{Subnet: l.V4.Subnet, PublicIP: addr("192.168.64.33"), Data: []byte(mac1)}}) {
		t.Errorf("after a restart: %+v", same)
	}
	if err := next.Publish(t.Context(), same); err != nil {
		t.Fatal(err)
	}
	resp, _ = st.Get(t.Context(), l.Name)
	if v := resp.Kvs[0].Version; v != 3 || st.etcdLeases() != 1 {
		t.Errorf("after a restart: %d writes, want 3; %d etcd leases, want 1", v, st.etcdLeases())
	}
}

func TestAcquirePrefersTheSubnetFile(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t)
	want := at("192.168.64.3")
	want.V4.Subnet = netip.MustParsePrefix("10.5.72.0/24")
	if l := start(t, srv.Endpoint(), nil).acquire(want); l.V4.Subnet != want.V4.Subnet {
		t.Errorf("got %v, the file says %v", l.V4.Subnet, want.V4.Subnet)
	}
	want.V4.PublicIP = addr("192.168.64.4")
	if l := start(t, srv.Endpoint(), nil).acquire(want); l.V4.Subnet == want.V4.Subnet {
		t.Errorf("got %v, which is another's", l.V4.Subnet)
	}
}

func TestReservationStays(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t)
	st := outside(t, srv)
	st.put("subnets/10.5.34.0-24", `{"PublicIP":"192.168.64.3"}`)
	n := start(t, srv.Endpoint(), nil)
	l := n.publish(at("192.168.64.3"), mac1)
	n.Run()
	n.Sees("")
	raw, id := st.value(base + "/subnets/10.5.34.0-24")
	if l.V4.Subnet.String() != "10.5.34.0/24" || id != 0 || raw != peer("192.168.64.3") || st.etcdLeases() != 0 {
		t.Errorf("%v, stored %s on etcd lease %x (%d of them)", l.V4.Subnet, raw, id, st.etcdLeases())
	}
	st.put("subnets/10.5.34.0-24", `garbage`)
	eventually.True(t, "put back", func() bool { raw, _ := st.value(l.Name); return raw == peer("192.168.64.3") })
	if _, id := st.value(l.Name); id != 0 {
		t.Errorf("put back on etcd lease %x", id)
	}
}

// A key that claims more than anybody can have keeps nobody from joining; what can be somebody's is not given away.
func TestAcquireAmongRogues(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t)
	st := outside(t, srv)
	for _, key := range []string{"0.0.0.0-1", "10.0.0.0-8", "10.5.0.0-16", "10.5.0.0-17", "foo", "10.5.200.0-33"} {
		st.put("subnets/"+key, peer("192.168.64.66"))
	}
	l := start(t, srv.Endpoint(), nil).acquire(at("192.168.64.3"))
	if l.V4.Subnet.Overlaps(netip.MustParsePrefix("10.5.0.0/17")) {
		t.Errorf("acquired %v, a part of what another has", l.V4.Subnet)
	}
}

// A node whose network gets or loses IPv6, also by a backend that has only IPv4, keeps its IPv4 subnet, which its pods
// have. Without a subnet file there are no such pods, and the subnets of its former lease stay taken.
func TestAcquireKeepsAFamily(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t)
	st := outside(t, srv)
	dual := tenNet
	dual.V6 = cafeNet
	want := at("192.168.64.3")
	want.V6.PublicIP = addr("fd64::3")
	first, err := start(t, srv.Endpoint(), nil).Acquire(t.Context(), dual, want)
	if err != nil {
		t.Fatal(err)
	}
	former := first
	watch := st.Watch(t.Context(), base+"/subnets/", clientv3.WithPrefix(), clientv3.WithRev(first.Since+1))
	for i, cfg := range []subnet.Config{tenNet, dual, tenNet} {
		want.V4.Subnet, want.V6.Subnet = first.V4.Subnet, netip.Prefix{}
		m := start(t, srv.Endpoint(), nil)
		l, err := m.Acquire(t.Context(), cfg, want)
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(m.own.seed.kvs, func(kv *mvccpb.KeyValue) bool { return string(kv.Key) == former.Name }) {
			t.Errorf("%d: the former key is taken for a peer at first", i)
		}
		if l.V4.Subnet != first.V4.Subnet || subnet.Fits(cfg, &l) != nil {
			t.Errorf("%d: had %v and %v, got %v and %v", i, former.V4.Subnet, former.V6.Subnet, l.V4.Subnet, l.V6.Subnet)
		}
		if raw, _ := st.value(former.Name); raw != "" {
			t.Errorf("%d: the former key %s is still there", i, former.Name)
		}
		if resp := <-watch; len(resp.Events) != 2 || resp.Events[0].IsCreate() || !resp.Events[1].IsCreate() {
			t.Errorf("%d: the events are %v, want that the former key is deleted before the new one is there", i, resp.Events)
		}
		former = l
	}
	st.put("subnets/"+strings.TrimPrefix(former.Name, base+"/subnets/"), peer("192.168.64.66")) // it is another node's now
	l, err := start(t, srv.Endpoint(), nil).Acquire(t.Context(), dual, want)
	if err != nil || l.V4.Subnet == first.V4.Subnet {
		t.Errorf("got %v, which is another node's; %v", l.V4.Subnet, err)
	}
}

// A reservation whose subnet this node has, but that lacks a family or has one too many, is neither ignored, so that
// the node would get another subnet, nor replaced. The error names it and the one to write. With that one, the node
// keeps its subnet.
func TestReservationOfOneFamily(t *testing.T) {
	t.Parallel()
	dual := tenNet
	dual.V6 = cafeNet
	for _, c := range []struct {
		reservation string
		cfg         subnet.Config
		wants       string
		write       string // such a key
	}{
		{"10.5.34.0-24", dual, "10.5.34.0-24&<IPv6 subnet>", "10.5.34.0-24&2001:cafe:42:7::-64"},
		{"0.0.0.0-0&2001:cafe:42:7::-64", dual, "<IPv4 subnet>&2001:cafe:42:7::-64", "10.5.34.0-24&2001:cafe:42:7::-64"},
		{"10.5.34.0-24&2001:cafe:42:7::-64", tenNet, "10.5.34.0-24", "10.5.34.0-24"},
	} {
		t.Run(c.reservation, func(t *testing.T) {
			t.Parallel()
			srv := etcdtest.Start(t)
			st := outside(t, srv)
			st.put("subnets/"+c.reservation, peerOf("192.168.64.3", "fd64::3", 1))
			want := at("192.168.64.3")
			want.V6.PublicIP = addr("fd64::3")
			var err error
			want.V4.Subnet, want.V6.Subnet, err = parseKey(c.reservation)
			must(t, err)
			booted := at("192.168.64.3") // without the subnet file
			booted.V6.PublicIP = want.V6.PublicIP
			n := start(t, srv.Endpoint(), nil)
			for _, want := range []subnet.Lease{want, booted} {
				_, err = n.Acquire(t.Context(), c.cfg, want)
				misfit, ok := errors.AsType[*misfitError](err)
				if !ok || misfit.Key != base+"/subnets/"+c.reservation || misfit.Wants != c.wants {
					t.Errorf("got %v, want that %s is to be written", err, c.wants)
				}
			}
			resp, err := st.Get(t.Context(), base+"/subnets/", clientv3.WithPrefix())
			if err != nil || resp.Count != 1 || resp.Kvs[0].Version != 1 {
				t.Errorf("the keys have changed: %v, %v", resp, err)
			}
			st.put("subnets/"+c.write, peerOf("192.168.64.3", "fd64::3", 1))
			if l, err := n.Acquire(t.Context(), c.cfg, want); err != nil || l.Name != base+"/subnets/"+c.write {
				t.Errorf("with that reservation: %s, %v", l.Name, err)
			}
		})
	}
}

// A reservation that lacks a family does not take a node the subnet that it has: neither that of its subnet file nor, after
// a boot, that of its key.
func TestReservationOfOneFamilyIsStale(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t)
	outside(t, srv).put("subnets/10.5.34.0-24", peerOf("192.168.64.3", "fd64::3", 1))
	dual := tenNet
	dual.V6 = cafeNet
	want := at("192.168.64.3")
	want.V6.PublicIP = addr("fd64::3")
	want.V4.Subnet = netip.MustParsePrefix("10.5.50.0/24")
	for range 2 {
		l, err := start(t, srv.Endpoint(), nil).Acquire(t.Context(), dual, want)
		if err != nil || l.V4.Subnet.String() != "10.5.50.0/24" {
			t.Errorf("got %v, %v", l.V4.Subnet, err)
		}
		want.V4.Subnet = netip.Prefix{}
	}
}

func TestIPv6Only(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t)
	st := outside(t, srv)
	cfg := subnet.Config{V6: cafeNet}
	seen := map[netip.Prefix]bool{}
	for i := range 3 {
		n := start(t, srv.Endpoint(), nil)
		want := subnet.Lease{V6: subnet.Endpoint{PublicIP: addr(fmt.Sprintf("fc00::%d", i+1))}}
		l, err := n.Acquire(t.Context(), cfg, want)
		if err != nil || seen[l.V6.Subnet] || l.V4.On() {
			t.Fatalf("%+v, %v", l, err)
		}
		seen[l.V6.Subnet] = true
		if raw, _ := st.value(l.Name); raw != fmt.Sprintf(`{"PublicIP":"0.0.0.0","PublicIPv6":"fc00::%d"}`, i+1) ||
			!strings.HasPrefix(l.Name, base+"/subnets/0.0.0.0-0&2001:cafe:42:") {
			t.Errorf("%s: %s", l.Name, raw)
		}
		again, err := start(t, srv.Endpoint(), nil).Acquire(t.Context(), cfg, want)
		if err != nil || again.Name != l.Name {
			t.Errorf("a restart got %v (%v), before %v", again.Name, err, l.Name)
		}
	}
}

// A key of the usual length cannot be created again, whatever is in it.
func TestFullNetwork(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t)
	st := outside(t, srv)
	cfg := tenNet
	cfg.V4.Max = addr("10.5.3.0")
	for i := range 3 {
		st.put(fmt.Sprintf("subnets/10.5.%d.0-24", i+1), "garbage") // unreadable, but maybe somebody's
	}
	_, err := start(t, srv.Endpoint(), nil).Acquire(t.Context(), cfg, at("192.168.64.3"))
	if !errors.Is(err, errFull) || !logtest.Names(err.Error(), "3", "10.5.0.0/16") {
		t.Errorf("%v", err)
	}
	if c := st.etcdLeases(); c != 0 {
		t.Errorf("%d etcd leases, want 0", c)
	}
}

// 40 nodes want the same subnet at once, in both families: none fails, no two overlap, no etcd lease is left over.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t)
	st := outside(t, srv)
	cfg := subnet.Config{V4: tenNet.V4, V6: cafeNet}
	cfg.V6.Max = addr("2001:cafe:42:31::") // 49 of them: they meet often
	const nodes = 40
	leases := make([]*subnet.Lease, nodes)
	managers := make([]*node, nodes)
	for i := range managers {
		managers[i] = start(t, srv.Endpoint(), nil)
	}
	began := time.Now()
	var wg sync.WaitGroup
	for i, n := range managers {
		wg.Go(func() {
			want := subnet.Lease{
				V4: subnet.Endpoint{PublicIP: addr(fmt.Sprintf("192.168.64.%d", i+1)), Subnet: netip.MustParsePrefix("10.5.72.0/24")},
				V6: subnet.Endpoint{PublicIP: addr(fmt.Sprintf("fc00::%d", i+1)), Subnet: netip.MustParsePrefix("2001:cafe:42:7::/64")},
			}
			l, err := n.Acquire(t.Context(), cfg, want)
			if err != nil {
				t.Errorf("node %d: %v", i, err)
			}
			leases[i] = &l
		})
	}
	wg.Wait()
	t.Logf("%d nodes: %v", nodes, time.Since(began).Round(time.Millisecond))
	for i, l := range leases {
		if subnet.Fits(cfg, l) != nil || !isFree(l, leases[:i]) {
			t.Errorf("node %d: %v %v does not fit or is another's too", i, l.V4.Subnet, l.V6.Subnet)
		}
	}
	resp, err := st.Get(t.Context(), base+"/subnets/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil || resp.Count != nodes || st.etcdLeases() != nodes {
		t.Errorf("%d keys, %d etcd leases (%v), want %d", resp.Count, st.etcdLeases(), err, nodes)
	}
}
