package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"flannel/cmd/flannel-lab/lab"
)

// TestConfigChanges changes the network configuration while nodes run.
func TestConfigChanges(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 2}, `{"Type":"vxlan"}`, atOnce)
	n := l.Nodes[0]
	a, b := pod(t, n, "a"), pod(t, l.Nodes[1], "b")
	reaches(t, "at first", a, b.IP4)
	// become sets a configuration and waits until the output of a command on
	// each node contains a text.
	become := func(t *testing.T, config, text string, command ...string) {
		t.Helper()
		must(t, l.SetConfig(t.Context(), config))
		for _, n := range l.Nodes {
			within(t, fmt.Sprintf("%s has %q", n.Name, text), func() error { return says(t, n, text, command...) })
			becomesReady(t, n)
		}
		reaches(t, "after the change", a, b.IP4)
		reaches(t, "after the change", b, a.IP4)
	}
	kernel := func() string {
		return words(in(t, n.Namespaces, `ip -o link show type vxlan; ip route; ip nexthop; ip neigh show dev flannel.1
			bridge fdb show dev flannel.1; nft list tables; iptables-save | grep -v '^[#:]'; cat /run/flannel/subnet.env`))
	}

	t.Run("MTU", func(t *testing.T) {
		stop := expectNoLoss(t, a, b.IP4)
		for _, c := range []struct{ more, mtu string }{{`,"MTU":1400`, "1350"}, {"", "1450"}} {
			become(t, l.Config(`{"Type":"vxlan"`+c.more+`}`), "mtu "+c.mtu, "ip", "link", "show", "flannel.1")
			for _, n := range l.Nodes {
				envHas(t, n, "FLANNEL_MTU", c.mtu)
			}
		}
		stop()
	})
	t.Run("VNI", func(t *testing.T) {
		before := kernel()
		become(t, l.Config(`{"Type":"vxlan","VNI":77}`), "vxlan id 77 ", "ip", "-d", "link", "show", "flannel.77")
		within(t, "no device of VNI 1 is left", func() error { return silent(t, n, "flannel.1:", "ip", "-o", "link") })
		within(t, "no route of VNI 1 is left", func() error { return silent(t, n, "flannel.1 ", "ip", "route") })
		become(t, l.Config(`{"Type":"vxlan"}`), "vxlan id 1 ", "ip", "-d", "link", "show", "flannel.1")
		within(t, "the kernel is as before", func() error { return same(before, kernel()) })
	})
	t.Run("host-gw and back", func(t *testing.T) {
		before := kernel()
		become(t, l.Config(`{"Type":"host-gw"}`), "via 192.168.100.", "ip", "route", "show", "root", "10.5.0.0/16")
		envHas(t, n, "FLANNEL_MTU", "1500")
		within(t, "no tunnel is left", func() error { return silent(t, n, "flannel", "ip", "link") })
		become(t, l.Config(`{"Type":"vxlan"}`), "dev flannel.1 ", "ip", "route")
		within(t, "the kernel is as before", func() error { return same(before, kernel()) })
	})
	t.Run("nftables and back", func(t *testing.T) {
		before, nft := kernel(), strings.Replace(l.Config(`{"Type":"vxlan"}`), "{", `{"EnableNFTables":true,`, 1)
		become(t, nft, "table ip flannel-ipv4", "nft", "list", "tables")
		within(t, "no rule by iptables is left", func() error { return silent(t, n, "FLANNEL", "iptables-save") })
		must(t, a.Ping(t.Context(), lab.Outside4))
		become(t, l.Config(`{"Type":"vxlan"}`), "-A FLANNEL-POSTRTG", "iptables-save")
		within(t, "the kernel is as before", func() error { return same(before, kernel()) })
		must(t, a.Ping(t.Context(), lab.Outside4))
	})

	refusedChanges(t, l, n, kernel)
	reaches(t, "after all that was refused", a, b.IP4)
	// A valid change after a refused one is applied.
	become(t, l.Config(`{"Type":"vxlan","MTU":1300}`), "mtu 1250", "ip", "link", "show", "flannel.1")
}

// refusedChanges sets configurations that a running node must refuse. The node
// keeps the current one.
func refusedChanges(t *testing.T, l *lab.Lab, n *lab.Node, kernel func() string) {
	for _, c := range []struct{ name, config, names string }{ // names: parts of the error, separated by spaces
		{"another Network", strings.Replace(l.Config(`{"Type":"vxlan"}`), "10.5.0.0/16", "10.9.0.0/16", 1),
			"Network 10.5.0.0/16 10.9.0.0/16"},
		{"another SubnetLen", strings.Replace(l.Config(`{"Type":"vxlan"}`), "{", `{"SubnetLen":26,`, 1),
			"SubnetLen 24 26"},
		{"garbage", "garbage", ""},
		{"nothing", "", ""},
		{"an unknown backend", l.Config(`{"Type":"teleport"}`), "Backend.Type teleport vxlan host-gw udp alloc"},
		{"an impossible MTU", l.Config(`{"Type":"vxlan","MTU":100}`), "Backend.MTU 100"},
		{"the underlay within Network", strings.Replace(l.Config(`{"Type":"vxlan"}`), "10.5.0.0/16", "192.168.0.0/16",
			1), "Network 192.168.0.0/16"},
	} {
		t.Run("refuse "+c.name, func(t *testing.T) {
			before, mark := kernel(), len(n.Log())
			must(t, l.SetConfig(t.Context(), c.config))
			loggedNaming(t, n, mark, "config-refused", "error", strings.Fields(c.names)...)
			time.Sleep(100 * time.Millisecond) // in which nothing may change
			becomesReady(t, n)
			must(t, same(before, kernel()))
			once(t, n, mark, "cause=config-refused")
			within(t, "a metric says so", func() error { return has(t, n, "flanneld_config_pending 1") })
			if r, err := reportOf(t, n); err != nil || r.Pending == "" || !r.Refused {
				t.Errorf("status does not say that the configuration is refused: %+v, %v", r, err)
			}
			must(t, l.SetConfig(t.Context(), l.Config(`{"Type":"vxlan"}`)))
			within(t, "the configuration is valid again", func() error { return has(t, n, "flanneld_config_pending 0") })
		})
	}
}

// same returns an error with the difference unless the texts are equal.
func same(before, after string) error {
	if change := lab.Changes(before, after); change != "" {
		return fmt.Errorf("changed:\n%s", change)
	}
	return nil
}

// TestWaitsForConfig starts nodes before there is a valid configuration.
func TestWaitsForConfig(t *testing.T) {
	t.Parallel()
	l := bare(t, lab.Options{Nodes: 2})
	n := l.Nodes[0]
	for _, n := range l.Nodes {
		must(t, n.Start())
	}
	logged(t, n, 0, "cause=no-config")
	must(t, unready(t, n)) // nor will it be
	if code, _, err := n.Ask(t.Context(), "/healthz"); err != nil || code != 200 {
		t.Errorf("/healthz: %d %v", code, err)
	}
	time.Sleep(3 * time.Second) // of more tries, which may log nothing that was logged before
	said := map[string]int{}
	for _, r := range n.Records(0).With("cause=no-config") { // one of etcd, and one of the start for what it knew after a second, or knows now
		if said[r["msg"]+r["reason"]]++; said[r["msg"]+r["reason"]] == 2 {
			t.Errorf("logged again: %s", r[""])
		}
	}
	for _, c := range []struct{ config, names string }{
		{l.Config(`{"Type":"teleport"}`), "Backend.Type: teleport vxlan host-gw alloc"},
		{`{"Network":"127.0.0.0/8","Backend":{"Type":"vxlan","VNI":17000000}}`, "VNI: 17000000 16777215"},
		{"garbage", "'g'"},
	} {
		mark := len(n.Log())
		must(t, l.SetConfig(t.Context(), c.config))
		names := strings.Fields(c.names)
		within(t, "/readyz says "+c.names, func() error { return unready(t, n, names...) })
		loggedNaming(t, n, mark, "config-refused", "reason", names...)
		once(t, n, mark, "cause=config-refused")
	}
	must(t, l.SetConfig(t.Context(), l.Config(`{"Type":"vxlan"}`)))
	for _, n := range l.Nodes {
		becomesReady(t, n)
	}
	reaches(t, "at last", pod(t, n, "a"), pod(t, l.Nodes[1], "b").IP4)
}

// TestAllAtOnce starts the daemons of a cluster at the same time. None may
// fail, and each must get a subnet of its own.
func TestAllAtOnce(t *testing.T) {
	t.Parallel()
	l := prepare(t, lab.Options{Nodes: 40}, `{"Type":"vxlan"}`)
	began := time.Now()
	var starting errgroup.Group
	for _, n := range l.Nodes {
		starting.Go(func() error { return n.Start() })
	}
	must(t, starting.Wait())
	for _, n := range l.Nodes {
		must(t, n.Ready(t.Context()))
	}
	t.Logf("%d nodes are ready after %v", len(l.Nodes), time.Since(began).Round(time.Millisecond))
	for _, n := range l.Nodes {
		hasPeers(t, n, len(l.Nodes)-1)
	}
	all, addresses := leases(t, l), map[string]bool{}
	for _, v := range all { // equal subnets would be the same key, and subnets of one length cannot overlap otherwise
		addresses[v.PublicIP] = true
	}
	if len(all) != len(l.Nodes) || len(addresses) != len(l.Nodes) {
		t.Errorf("%d leases of %d nodes, want %d: %v", len(all), len(addresses), len(l.Nodes), all)
	}
	if held, err := etcdClient(t, l).Leases(t.Context()); err != nil || len(held.Leases) != len(l.Nodes) {
		t.Errorf("etcd has %d leases (%v): nodes that lost a race left leases over", len(held.Leases), err)
	}
	for i, n := range l.Nodes {
		for _, next := range []int{1, 7, 19} {
			key, _ := leaseOf(t, l, l.Nodes[(i+next)%len(l.Nodes)])
			if _, err := n.Reach(t.Context(), address(t, key), timeout); err != nil {
				t.Errorf("%s does not reach the node %d after it: %v", n.Name, next, err)
			}
		}
	}
	for _, n := range l.Nodes {
		stopped(t, n)
	}
}
