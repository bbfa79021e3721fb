package e2e

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"flannel/cmd/flannel-lab/lab"
)

// TestLease is about a node's own lease: what keeps it over a restart, and what another hand does to its key.
func TestLease(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 2}, `{"Type":"vxlan"}`+apart)
	c, n, other := etcdClient(t, l), l.Nodes[0], l.Nodes[1]
	a, b := pod(t, other, "a"), pod(t, n, "b")
	reaches(t, "at first", a, b.IP4)
	key, value := leaseOf(t, l, n)

	t.Run("restart without the subnet file", func(t *testing.T) { restartWithoutFile(t, l, n, a, b) })

	t.Run("restart with another public address", func(t *testing.T) {
		stopped(t, n)
		_, err := c.Delete(t.Context(), subnetKeys+key) // while the key is there, the subnet is not free
		must(t, err)
		in(t, n.Namespaces, "ip address add 192.168.100.99/24 dev eth0")
		must(t, n.Start("-public-ip=192.168.100.99"))
		must(t, n.Ready(t.Context()))
		leases, err := l.Leases(t.Context())
		must(t, err)
		if !strings.Contains(leases[key], `"PublicIP":"192.168.100.99"`) {
			t.Errorf("the leases are %v; want %s with the new address", leases, key)
		}
		reaches(t, "with the new address", a, b.IP4)
		stopped(t, n)
		_, err = c.Delete(t.Context(), subnetKeys+key)
		must(t, err)
		must(t, n.Start())
		must(t, n.Ready(t.Context()))
		reaches(t, "with the old address", a, b.IP4)
	})

	for what, text := range map[string]string{
		"garbage":             "garbage",
		"another node's":      strings.Replace(value, n.IP4.String(), "192.168.100.77", 1),
		"a damaged VtepMAC's": strings.Replace(value, `"VtepMAC":"`, `"VtepMAC":"zz`, 1),
	} {
		t.Run("overwritten by "+what+" value", func(t *testing.T) {
			// As etcdctl does: the etcd lease is gone from the key, too.
			_, err := c.Put(t.Context(), subnetKeys+key, text)
			must(t, err)
			within(t, "the value is back", func() error {
				if k, v, err := keyOf(t, l, n); err != nil || k != key || v != value {
					return fmt.Errorf("the lease is %s %s, want %s %s (%v)", k, v, key, value, err)
				}
				return nil
			})
			reaches(t, what, a, b.IP4)
		})
	}

	t.Run("deleted", func(t *testing.T) {
		show := `ip -d link show flannel.1 | grep -v state; ip route; ip neigh show dev flannel.1; bridge fdb show dev flannel.1
			iptables-save | grep ^-A; cat /run/flannel/subnet.env`
		before, mark := in(t, n.Namespaces, show), len(n.Log())
		_, err := c.Delete(t.Context(), subnetKeys+key)
		must(t, err)
		ends(t, n, 1)
		logged(t, n, mark, "cause=lease-lost")
		if after := in(t, n.Namespaces, show); after != before {
			t.Errorf("the network was\n%s\nand is\n%s", before, after)
		}
		within(t, "the other node forgets it", func() error { return silent(t, other, "flannel.1", "ip", "route") })
	})
}

// restartWithoutFile finds its lease again by its public address.
func restartWithoutFile(t *testing.T, l *lab.Lab, n *lab.Node, a, b *lab.Pod) {
	c := etcdClient(t, l)
	key, value := leaseOf(t, l, n)
	before, err := c.Get(t.Context(), subnetKeys+key)
	must(t, err)
	stop := unlost(t, a, b.IP4)
	stopped(t, n)
	in(t, n.Namespaces, "rm /run/flannel/subnet.env")
	must(t, n.Start())
	must(t, n.Ready(t.Context()))
	stop()
	after, err := c.Get(t.Context(), subnetKeys+key)
	must(t, err)
	if k, v := leaseOf(t, l, n); k != key || v != value {
		t.Errorf("the lease is %s %s, was %s %s", k, v, key, value)
	}
	if after.Kvs[0].Lease != before.Kvs[0].Lease {
		t.Error("the key hangs on another etcd lease")
	}
	if all, err := c.Leases(t.Context()); err != nil || len(all.Leases) != 2 {
		t.Errorf("etcd has the leases %v (%v), want two", all, err)
	}
}

// TestForeignKeys puts into the store what flannel stumbles over: it must cost nobody else a packet.
func TestForeignKeys(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 2}, `{"Type":"vxlan"}`+apart)
	c, n := etcdClient(t, l), l.Nodes[0]
	a, b := pod(t, n, "a"), pod(t, l.Nodes[1], "b")
	reaches(t, "at first", a, b.IP4)
	ownKey, _ := leaseOf(t, l, n)
	kernel := func() string {
		return in(t, n.Namespaces, "ip route; ip nexthop; ip neigh show dev flannel.1; bridge fdb show dev flannel.1")
	}
	before := kernel()

	rogue := func(mac string) string {
		return `{"PublicIP":"192.168.100.66","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"` + mac + `"}}`
	}
	own := strings.Split(ownKey, "-")[0]
	bad := map[string]string{
		"foo": "garbage", "10.5.250.0-24": "garbage", "10.5.251.0-24": `{"PublicIP":"none"}`, "10.5.252.0-33": rogue("02:00:00:00:00:01"),
		"10.5.253.0-24": rogue("ff:ff:ff:ff:ff:ff"), "10.5.254.0-24": `{"PublicIP":"192.168.100.66","BackendType":"vxlan","BackendData":null}`,
		"128.0.0.0-1": rogue("02:00:00:00:00:02"), "192.168.100.0-24": rogue("02:00:00:00:00:03"), "10.5.0.0-16": rogue("02:00:00:00:00:04"),
		own + "-25": rogue("02:00:00:00:00:05"), "0.0.0.0-0": rogue("02:00:00:00:00:06"),
		"10.5.249.0-24": strings.Replace(rogue("02:00:00:00:00:07"), "192.168.100.66", n.IP4.String(), 1),
	}
	stops := []func(){unlost(t, a, b.IP4), unlost(t, b, a.IP4)}
	mark := len(n.Log())
	for key, value := range bad {
		_, err := c.Put(t.Context(), subnetKeys+key, value)
		must(t, err)
	}
	for _, beside := range []string{"/coreos.com/network/subnets-backup/x", "/coreos.com/network/subnets", "/coreos.com/networks/config"} {
		_, err := c.Put(t.Context(), beside, "garbage")
		must(t, err)
	}
	within(t, "every bad key is counted", func() error { return has(t, n, fmt.Sprintf("flanneld_invalid_peers %d", len(bad))) })
	must(t, ready(t, n))
	if after := kernel(); after != before {
		t.Errorf("the kernel had\n%s\nand has\n%s", before, after)
	}
	for key := range bad {
		logged(t, n, mark, "cause=peer-rejected", "peer="+subnetKeys+key)
	}
	for key := range bad {
		_, err := c.Put(t.Context(), subnetKeys+key, bad[key]) // again: no second warning
		must(t, err)
	}
	time.Sleep(300 * time.Millisecond)
	for key := range bad {
		if about := n.Records(mark).With("peer=" + subnetKeys + key); len(about) != 1 || about[0]["level"] != "WARN" {
			t.Errorf("%d lines about %s, want one warning: %v", len(about), key, about)
		}
	}
	if strings.Contains(n.Log()[mark:], "backup") {
		t.Error("a key beside the prefix is told of")
	}
	for key := range bad {
		_, err := c.Delete(t.Context(), subnetKeys+key)
		must(t, err)
	}
	within(t, "they are no longer counted", func() error { return has(t, n, "flanneld_invalid_peers 0") })

	// One of a Windows node, told by its MAC address: that this network's VNI and port keep it out is said at once.
	windows := strings.Replace(rogue("00:15:5d:aa:bb:cc"), `"VNI":1`, `"VNI":4096`, 1)
	_, err := c.Put(t.Context(), subnetKeys+"10.5.248.0-24", windows)
	must(t, err)
	loggedNaming(t, n, mark, "windows-mismatch", "reason", "10.5.248.0-24", "VNI", "4096", "Port", "4789")
	_, err = c.Delete(t.Context(), subnetKeys+"10.5.248.0-24")
	must(t, err)
	within(t, "it is gone", func() error { return has(t, n, "flanneld_invalid_peers 0") })
	for _, stop := range stops {
		stop()
	}
	if after := kernel(); after != before {
		t.Errorf("the kernel had\n%s\nand has\n%s", before, after)
	}
	must(t, ready(t, n))
}

// has tells whether /metrics has a line.
func has(t *testing.T, n *lab.Node, line string) error {
	code, body, err := n.Ask(t.Context(), "/metrics")
	if err != nil || code != 200 {
		return fmt.Errorf("/metrics: %d %w", code, err)
	}
	if strings.Contains("\n"+body, "\n"+line+"\n") {
		return nil
	}
	name, _, _ := strings.Cut(line, " ")
	for have := range strings.Lines(body) {
		if strings.HasPrefix(have, name+" ") {
			return fmt.Errorf("/metrics has %q, want %q", strings.TrimSpace(have), line)
		}
	}
	return fmt.Errorf("/metrics has no %s", name)
}

// TestEtcdAway stops etcd, and then makes it deaf: the network stays as it is, is mended, and catches up.
func TestEtcdAway(t *testing.T) {
	t.Parallel()
	l := bare(t, lab.Options{Nodes: 4})
	must(t, l.SetConfig(t.Context(), l.Config(`{"Type":"vxlan"}`)))
	nodes, late := l.Nodes[:3], l.Nodes[3]
	for _, n := range nodes {
		must(t, n.Start())
	}
	for _, n := range nodes {
		must(t, n.Ready(t.Context()))
	}
	a, b, d := pod(t, nodes[0], "a"), pod(t, nodes[1], "b"), pod(t, nodes[2], "d")
	reaches(t, "at first", a, b.IP4)
	reaches(t, "at first", a, d.IP4)

	stop := unlost(t, a, b.IP4)
	mark := len(nodes[0].Log())
	must(t, l.Etcd.Kill())
	end := time.Now().Add(20 * time.Second)
	must(t, late.Start()) // it can only wait
	logged(t, nodes[0], mark, "cause=store-silent")
	mended(t, nodes[0], d)
	must(t, nodes[0].Kill())
	must(t, nodes[0].Start()) // likewise; what the former one left serves on
	loggedNaming(t, late, 0, "store-silent", "error", syscall.ECONNREFUSED.Error())
	must(t, unready(t, late))
	logged(t, late, 0, "cause=no-config")
	time.Sleep(time.Until(end))
	mended(t, nodes[1], d)
	must(t, ready(t, nodes[1]))
	logged(t, nodes[2], 0, "cause=store-silent")
	if warned := len(nodes[2].Records(0).With("cause=store-silent")); warned != 1 {
		t.Errorf("%d warnings of the outage, want one", warned)
	}
	must(t, l.Etcd.Start(t.Context()))
	within(t, "the restarted node is in step", func() error { return ready(t, nodes[0]) })
	within(t, "the late node is in step", func() error { return ready(t, late) })
	stop()
	reaches(t, "after the outage", pod(t, late, "late"), a.IP4)

	c := etcdClient(t, l)
	lateKey, _ := leaseOf(t, l, late)
	stop = unlost(t, a, b.IP4)
	must(t, l.Etcd.Pause())
	end = time.Now().Add(15 * time.Second)
	mended(t, nodes[0], d)
	must(t, late.Kill()) // its lease is taken away as soon as etcd hears again
	gone := make(chan error, 1)
	go func() {
		_, err := c.Delete(t.Context(), subnetKeys+lateKey)
		gone <- err
	}()
	time.Sleep(time.Until(end))
	mended(t, nodes[2], a)
	must(t, l.Etcd.Resume())
	must(t, <-gone)
	for _, n := range nodes {
		within(t, n.Name+" learns that the late node is gone", func() error {
			return silent(t, n, strings.ReplaceAll(lateKey, "-", "/"), "ip", "route")
		})
		within(t, n.Name+" is in step", func() error { return ready(t, n) })
	}
	stop()
}

// mended deletes a node's route to a pod of another and waits until it is back.
func mended(t *testing.T, n *lab.Node, to *lab.Pod) {
	t.Helper()
	mendedRoute(t, n, subnetOf(to))
}

func mendedRoute(t *testing.T, n *lab.Node, dst string) {
	t.Helper()
	in(t, n.Namespaces, "ip route delete "+dst)
	within(t, "the route is mended without etcd", func() error { return says(t, n, dst, "ip", "route") })
}

// subnetOf is the subnet that a pod's address is from.
func subnetOf(p *lab.Pod) string {
	prefix, err := p.IP4.Prefix(24)
	if err != nil {
		return err.Error()
	}
	return prefix.String()
}
