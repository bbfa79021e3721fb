package e2e

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"flannel/cmd/flannel-lab/lab"
)

// TestLease is about a node's own lease: how the node finds it after a restart,
// and what happens when somebody else changes its key.
func TestLease(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 2}, `{"Type":"vxlan","Guard":"enforce","GuardTrial":0}`+apart)
	c, n, other := etcdClient(t, l), l.Nodes[0], l.Nodes[1]
	a, b := pod(t, other, "a"), pod(t, n, "b")
	reaches(t, "at first", a, b.IP4)
	key, value := leaseOf(t, l, n)

	t.Run("restart without the subnet file", func(t *testing.T) { restartWithoutFile(t, l, n, a, b) })

	t.Run("restart with another public address", func(t *testing.T) {
		stopped(t, n)
		_, err := c.Delete(t.Context(), subnetKeys+key) // the key would keep the subnet in use
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
			// As with etcdctl, the key also loses its etcd lease.
			_, err := c.Put(t.Context(), subnetKeys+key, text)
			must(t, err)
			within(t, "the value is restored", func() error {
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
		within(t, "the other node removes it", func() error { return silent(t, other, "flannel.1", "ip", "route") })
	})
}

// restartWithoutFile restarts a node without its subnet file. It finds its
// lease by its public address.
func restartWithoutFile(t *testing.T, l *lab.Lab, n *lab.Node, a, b *lab.Pod) {
	c := etcdClient(t, l)
	key, value := leaseOf(t, l, n)
	before, err := c.Get(t.Context(), subnetKeys+key)
	must(t, err)
	stop := expectNoLoss(t, a, b.IP4)
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
		t.Error("the key has another etcd lease")
	}
	if all, err := c.Leases(t.Context()); err != nil || len(all.Leases) != 2 {
		t.Errorf("etcd has the leases %v (%v), want two", all, err)
	}
}

// TestForeignKeys writes invalid keys and values. They must not affect any
// other peer.
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
		"foo": "garbage", "10.5.250.0-24": "garbage", "10.5.251.0-24": `{"PublicIP":"none"}`,
		"10.5.252.0-33": rogue("02:00:00:00:00:01"),
		"10.5.253.0-24": rogue("ff:ff:ff:ff:ff:ff"),
		"10.5.254.0-24": `{"PublicIP":"192.168.100.66","BackendType":"vxlan","BackendData":null}`,
		"128.0.0.0-1":   rogue("02:00:00:00:00:02"), "192.168.100.0-24": rogue("02:00:00:00:00:03"),
		"10.5.0.0-16": rogue("02:00:00:00:00:04"),
		own + "-25":   rogue("02:00:00:00:00:05"), "0.0.0.0-0": rogue("02:00:00:00:00:06"),
		"10.5.249.0-24": strings.Replace(rogue("02:00:00:00:00:07"), "192.168.100.66", n.IP4.String(), 1),
	}
	stops := []func(){expectNoLoss(t, a, b.IP4), expectNoLoss(t, b, a.IP4)}
	mark := len(n.Log())
	for key, value := range bad {
		_, err := c.Put(t.Context(), subnetKeys+key, value)
		must(t, err)
	}
	for _, key := range []string{"/coreos.com/network/subnets-backup/x", "/coreos.com/network/subnets",
		"/coreos.com/networks/config"} {
		_, err := c.Put(t.Context(), key, "garbage")
		must(t, err)
	}
	within(t, "every bad key is counted", func() error {
		return has(t, n, fmt.Sprintf("flanneld_invalid_peers %d", len(bad)))
	})
	becomesReady(t, n)
	if after := kernel(); after != before {
		t.Errorf("the state of the kernel was\n%s\nand is\n%s", before, after)
	}
	for key := range bad {
		logged(t, n, mark, "cause=peer-rejected", "peer="+subnetKeys+key)
	}
	for key := range bad {
		_, err := c.Put(t.Context(), subnetKeys+key, bad[key]) // written again: no second warning
		must(t, err)
	}
	time.Sleep(300 * time.Millisecond) // in which nothing may be logged
	for key := range bad {
		if about := n.Records(mark).With("peer=" + subnetKeys + key); len(about) > 1 || about[0]["level"] != "WARN" {
			t.Errorf("%d lines about %s, want one warning: %v", len(about), key, about)
		}
	}
	if strings.Contains(n.Log()[mark:], "backup") {
		t.Error("a key outside of the prefix is logged")
	}
	for key := range bad {
		_, err := c.Delete(t.Context(), subnetKeys+key)
		must(t, err)
	}
	within(t, "they are no longer counted", func() error { return has(t, n, "flanneld_invalid_peers 0") })

	// The lease of a Windows node, recognized by its MAC: a warning says that the VNI
	// and port of this network exclude it.
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
		t.Errorf("the state of the kernel was\n%s\nand is\n%s", before, after)
	}
	becomesReady(t, n)
}

// has returns an error unless /metrics has a line.
func has(t *testing.T, n *lab.Node, line string) error {
	code, body, err := n.Ask(t.Context(), "/metrics")
	if err != nil || code != 200 {
		return fmt.Errorf("/metrics: %d %w", code, err)
	}
	if strings.Contains("\n"+body, "\n"+line+"\n") {
		return nil
	}
	name, _, _ := strings.Cut(line, " ")
	for got := range strings.Lines(body) {
		if strings.HasPrefix(got, name+" ") {
			return fmt.Errorf("/metrics has %q, want %q", strings.TrimSpace(got), line)
		}
	}
	return fmt.Errorf("/metrics has no %s", name)
}

// TestEtcdAway kills etcd, and later pauses it. Meanwhile the network stays as
// it is and drift is repaired; afterwards all nodes catch up.
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

	stop := expectNoLoss(t, a, b.IP4)
	mark, quiet := len(nodes[0].Log()), len(nodes[2].Log())
	must(t, l.Etcd.Kill())
	end := time.Now().Add(20 * time.Second)
	must(t, late.Start()) // it must wait
	logged(t, nodes[0], mark, "cause=store-silent")
	podRouteRestored(t, nodes[0], d)
	must(t, nodes[0].Kill())
	must(t, nodes[0].Start()) // likewise; the entries of the former one stay
	loggedNaming(t, late, 0, "store-silent", "error", syscall.ECONNREFUSED.Error())
	must(t, unready(t, late)) // nor can it be, without etcd
	logged(t, late, 0, "cause=no-config")
	time.Sleep(time.Until(end)) // the end of the outage
	podRouteRestored(t, nodes[1], d)
	becomesReady(t, nodes[1])
	once(t, nodes[2], quiet, "cause=store-silent")
	must(t, l.Etcd.Start(t.Context()))
	becomesReady(t, nodes[0])
	becomesReady(t, late)
	stop()
	reaches(t, "after the outage", pod(t, late, "late"), a.IP4)

	c := etcdClient(t, l)
	lateKey, _ := leaseOf(t, l, late)
	stop = expectNoLoss(t, a, b.IP4)
	must(t, l.Etcd.Pause())
	end = time.Now().Add(15 * time.Second)
	podRouteRestored(t, nodes[0], d)
	must(t, late.Kill()) // its lease is deleted as soon as etcd resumes
	gone := make(chan error, 1)
	go func() {
		_, err := c.Delete(t.Context(), subnetKeys+lateKey)
		gone <- err
	}()
	time.Sleep(time.Until(end)) // the end of the outage
	podRouteRestored(t, nodes[2], a)
	must(t, l.Etcd.Resume())
	must(t, <-gone)
	for _, n := range nodes {
		within(t, n.Name+" removes the late node", func() error {
			return silent(t, n, strings.ReplaceAll(lateKey, "-", "/"), "ip", "route")
		})
		becomesReady(t, n)
	}
	stop()
}

// podRouteRestored deletes the route of a node to a pod and waits until it is
// restored.
func podRouteRestored(t *testing.T, n *lab.Node, to *lab.Pod) {
	t.Helper()
	routeRestored(t, n, subnetOf(to))
}

func routeRestored(t *testing.T, n *lab.Node, dst string) {
	t.Helper()
	in(t, n.Namespaces, "ip route delete "+dst)
	within(t, "the route is restored without etcd", func() error { return says(t, n, dst, "ip", "route") })
}

// subnetOf returns the subnet of the address of a pod.
func subnetOf(p *lab.Pod) string {
	prefix, err := p.IP4.Prefix(24)
	if err != nil {
		return err.Error()
	}
	return prefix.String()
}
