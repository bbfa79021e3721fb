package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"flannel/cmd/flannel-lab/lab"
)

// TestUnderlayChanges changes the uplink of a node as DHCP, operators and
// broken cables do. Nothing is restarted.
func TestUnderlayChanges(t *testing.T) {
	t.Parallel() // connections from the old address hang, which takes 3 s to notice
	for _, backend := range []string{"vxlan", "host-gw"} {
		t.Run(backend, func(t *testing.T) {
			l := start(t, lab.Options{Nodes: 2}, `{"Type":"`+backend+`"}`)
			n, other := l.Nodes[0], l.Nodes[1]
			a, b := pod(t, n, "a"), pod(t, other, "b")
			reaches(t, "at first", a, b.IP4)
			key, _ := leaseOf(t, l, n)
			both := func(t *testing.T, what string) {
				t.Helper()
				reaches(t, what, b, a.IP4)
				reaches(t, what, a, b.IP4)
				becomesReady(t, n)
			}
			t.Run("address", func(t *testing.T) { changeAddress(t, l, backend, both) })
			t.Run("MTU", func(t *testing.T) { changeMTU(t, n, backend) })
			t.Run("down and up", func(t *testing.T) {
				in(t, n.Namespaces, "ip link set eth0 down; sleep 0.3; ip link set eth0 up; ip route replace default via 192.168.100.1")
				both(t, "up again")
			})
			t.Run("no carrier", func(t *testing.T) {
				const routes = "ip route show root 10.5.0.0/16 | sed 's/ nhid [0-9]*//; s/ linkdown//; / proto kernel/d'"
				before := in(t, n.Namespaces, routes)
				in(t, l.Infra.Namespaces, "ip link set "+n.Name+" down")
				within(t, "no carrier", func() error {
					if state := in(t, n.Namespaces, "cat /sys/class/net/eth0/operstate"); state == "up\n" {
						return fmt.Errorf("the state of eth0 is %s", state)
					}
					return nil
				})
				// The kernel deletes objects and routes, and flanneld writes the routes before the next resync.
				withinOf(t, 3*time.Minute, "routes without objects", func() error {
					if after := in(t, n.Namespaces, routes+"; ip nexthop show | sed -n '/dev eth0/p'"); after != before {
						return fmt.Errorf("the routes and nexthop objects on eth0 are\n%s\nwant only\n%s", after, before)
					}
					return nil
				})
				in(t, l.Infra.Namespaces, "ip link set "+n.Name+" up")
				both(t, "with a carrier again")
			})
			t.Run("unplugged and plugged in again", func(t *testing.T) {
				before := in(t, n.Namespaces, "cat /sys/class/net/eth0/ifindex")
				must(t, n.Unplug())
				within(t, "/readyz says what is missing", func() error { return unready(t, n, "--iface=eth0") })
				must(t, n.Plug())
				both(t, "plugged in")
				if after := in(t, n.Namespaces, "cat /sys/class/net/eth0/ifindex"); after == before {
					t.Error("the device has the same index, so the test is ineffective")
				}
			})
			t.Run("replaced at once", func(t *testing.T) {
				must(t, n.Unplug())
				must(t, n.Plug())
				both(t, "plugged in")
			})
			if after, value := leaseOf(t, l, n); after != key {
				t.Errorf("the lease is %s %s, was %s", after, value, key)
			}
		})
	}
}

// changeAddress adds another address to the node and then removes the first
// one, as when DHCP renumbers.
func changeAddress(t *testing.T, l *lab.Lab, backend string, both func(*testing.T, string)) {
	n, other := l.Nodes[0], l.Nodes[1]
	for _, move := range [][2]string{{"192.168.100.11", "192.168.100.99"}, {"192.168.100.99", "192.168.100.11"}} {
		from, to := move[0], move[1]
		in(t, n.Namespaces, "echo 1 > /proc/sys/net/ipv4/conf/eth0/promote_secondaries; ip address add "+to+"/24 dev eth0; ip address delete "+from+
			"/24 dev eth0; ip route replace default via 192.168.100.1")
		both(t, "with "+to)
		within(t, "the lease follows", func() error {
			leases, err := l.Leases(t.Context())
			if all := fmt.Sprint(leases); err == nil &&
				(!strings.Contains(all, `"`+to+`"`) || strings.Contains(all, `"`+from+`"`)) {
				err = errors.New(all)
			}
			return err
		})
		entry, show := "via ", []string{"ip", "route"}
		if backend == "vxlan" {
			must(t, says(t, n, "local "+to+" ", "ip", "-d", "link", "show", "flannel.1")) // what the lease says
			entry, show = "dst ", []string{"bridge", "fdb", "show", "dev", "flannel.1"}
		}
		within(t, "the other node follows", func() error { return says(t, other, entry+to+" ", show...) })
		within(t, "and removes the old address", func() error { return silent(t, other, entry+from+" ", show...) })
	}
}

func changeMTU(t *testing.T, n *lab.Node, backend string) {
	for _, mtu := range []int{1400, 1500} {
		in(t, n.Namespaces, fmt.Sprintf("ip link set eth0 mtu %d", mtu))
		pods := mtu
		if backend == "vxlan" {
			pods -= 50
			within(t, "the device follows", func() error {
				return says(t, n, fmt.Sprintf("mtu %d ", pods), "ip", "link", "show", "flannel.1")
			})
		}
		envHas(t, n, "FLANNEL_MTU", fmt.Sprint(pods))
	}
}

// TestUnderlayChoice starts a node of two interfaces with every way to say which one.
func TestUnderlayChoice(t *testing.T) {
	t.Parallel()
	l := bare(t, lab.Options{Nodes: 1})
	must(t, l.SetConfig(t.Context(), l.Config(`{"Type":"vxlan"}`)))
	n := l.Nodes[0]
	in(t, n.Namespaces, `ip link add eth1 link eth0 type macvlan mode bridge; ip link set eth1 up
		ip address add 192.168.100.111/24 dev eth1 noprefixroute; ip route add 203.0.113.0/24 via 192.168.100.1 dev eth1 onlink`)
	launch := func(t *testing.T, args ...string) {
		t.Helper()
		must(t, n.StartWith(append([]string{"-etcd-endpoints=" + l.Etcd.Endpoint(), fmt.Sprintf("-healthz-port=%d", lab.HealthPort)}, args...)...))
	}
	published := func(t *testing.T, address string) {
		t.Helper()
		within(t, address+" is published", func() error { // a running flanneld leaves an interface after half a minute
			leases, err := l.Leases(t.Context())
			if all := fmt.Sprint(leases); err == nil && (len(leases) != 1 ||
				!strings.Contains(all, `"PublicIP":"`+address+`"`) || !strings.Contains(all, "vxlan")) {
				err = errors.New(all)
			}
			return err
		})
	}
	fresh := func(t *testing.T) { // neither key nor subnet file of the case before
		stopped(t, n)
		must(t, l.Etcd.Wipe(t.Context()))
		must(t, l.SetConfig(t.Context(), l.Config(`{"Type":"vxlan"}`)))
	}
	for _, c := range []struct{ args, address string }{
		{"", "192.168.100.11"}, {"-iface=eth1", "192.168.100.111"}, {"--iface eth9 --iface eth1", "192.168.100.111"},
		{"-iface=192.168.100.111", "192.168.100.111"}, {"-iface-regex=^eth1$", "192.168.100.111"},
		{"-iface-regex=\\.100\\.111$", "192.168.100.111"},
		{"-iface-can-reach=203.0.113.9", "192.168.100.111"}, {"-iface-can-reach=192.168.100.200", "192.168.100.11"},
		{"-iface=eth1 -public-ip=198.51.100.7", "198.51.100.7"},
		{"-iface=eth9 -iface-can-reach=203.0.113.9", "192.168.100.111"},
	} {
		t.Run("args "+c.args, func(t *testing.T) {
			launch(t, strings.Fields(c.args)...)
			published(t, c.address)
			becomesReady(t, n)
			fresh(t)
		})
	}
	t.Run("the public address selects", func(t *testing.T) {
		launch(t, "-public-ip=192.168.100.111")
		published(t, "192.168.100.111")
		becomesReady(t, n)
		must(t, says(t, n, "local 192.168.100.111 dev eth1", "ip", "-d", "link", "show", "flannel.1")) // what the lease says
		fresh(t)
	})
	t.Run("the default route moves", func(t *testing.T) {
		launch(t)
		published(t, "192.168.100.11")
		in(t, n.Namespaces, "ip route replace default via 192.168.100.1 dev eth1 onlink")
		published(t, "192.168.100.111")
		within(t, "the tunnel follows", func() error {
			return says(t, n, "local 192.168.100.111 dev eth1", "ip", "-d", "link", "show", "flannel.1")
		})
		in(t, n.Namespaces, "ip route replace default via 192.168.100.1 dev eth0")
		published(t, "192.168.100.11")
		within(t, "the tunnel follows", func() error {
			return says(t, n, "local 192.168.100.11 dev eth0", "ip", "-d", "link", "show", "flannel.1")
		})
		fresh(t)
	})
	t.Run("nothing fits", func(t *testing.T) { nothingFits(t, n, launch, published) })
}

// nothingFits waits until there is an interface that fits, and says what is
// wrong with those that there are.
func nothingFits(t *testing.T, n *lab.Node, launch func(*testing.T, ...string), published func(*testing.T, string)) {
	mark := len(n.Log())
	launch(t, "-iface=eth7", "-iface=10.9.9.9")
	names := []string{"--iface=eth7:", "--iface=10.9.9.9:", "lo (127.0.0.1, ::1)", "--iface=eth0"}
	within(t, "/readyz says why", func() error { return unready(t, n, names...) })
	loggedNaming(t, n, mark, "cannot-start", "reason", names...)
	in(t, n.Namespaces, "ip link add eth7 type veth peer name far")
	within(t, "/readyz says why not", func() error { return unready(t, n, "--iface=eth7: eth7") })
	in(t, n.Namespaces, "for i in 1 2 3; do ip route add 10.99.0.0/16 dev eth1; sleep 0.1; ip route delete 10.99.0.0/16; sleep 0.1; done")
	seen := map[string]bool{}
	for _, reason := range n.Records(mark).With("cause=cannot-start").Values("reason") {
		if seen[reason] {
			t.Error("logged again: " + reason)
		}
		seen[reason] = true
	}
	in(t, n.Namespaces, "ip link set far up; ip link set eth7 up; ip address add 10.9.0.7/24 dev eth7")
	published(t, "10.9.0.7")
	becomesReady(t, n)
	stopped(t, n)
}

// TestNetworkContainsNodes has a pod network in which the nodes have their own
// addresses, and room for two subnets beside the underlay's own network. With
// wireguard the nodes reach each other by their default route.
func TestNetworkContainsNodes(t *testing.T) {
	t.Parallel()
	for backend, c := range map[string]struct {
		links       int
		first, last string
	}{"vxlan": {1, "192.168.99.0", "192.168.101.0"}, "host-gw": {1, "192.168.99.0", "192.168.101.0"}, "wireguard": {2, "192.168.98.0", "192.168.99.0"}} {
		t.Run(backend, func(t *testing.T) {
			l := bare(t, lab.Options{Nodes: 2, Subnets: c.links})
			must(t, l.SetConfig(t.Context(), fmt.Sprintf(`{"Network":"192.168.0.0/16","SubnetMin":%q,"SubnetMax":%q,"Backend":{"Type":%q}}`, c.first, c.last, backend)))
			must(t, l.StartAll(t.Context()))
			a, b := pair(t, l)
			reaches(t, "from pod to pod", a, b.IP4)
			reaches(t, "and back", b, a.IP4)
			t.Cleanup(noneForged(t, l))
			for _, p := range []*lab.Pod{a, b} {
				if err := p.Ping(t.Context(), lab.Outside4); err != nil {
					t.Error(err)
				}
				if err := p.Ping(t.Context(), p.Node.IP4); err != nil {
					t.Error(err)
				}
			}
			for i, n := range l.Nodes {
				if err := n.Ping(t.Context(), l.Nodes[1-i].IP4); err != nil {
					t.Error(err)
				}
				loggedNaming(t, n, 0, "config-warning", "msg", "192.168.0.0/16", n.IP4.String())
				becomesReady(t, n)
			}
			// Leases with the underlay's own network, or with the address of a
			// pod, must not affect anybody.
			mac := "02:00:00:00:00:77"
			putLease(t, l, "192.168.100.0-24", &value{"192.168.100.77", nil, backend, &vtep{1, mac}, nil})
			putLease(t, l, "192.168.7.0-24", &value{b.IP4.String(), nil, backend, &vtep{1, mac}, nil})
			for _, n := range l.Nodes {
				within(t, "both are rejected", func() error { return has(t, n, "flanneld_invalid_peers 2") })
			}
			reaches(t, "still", a, b.IP4)
		})
	}
}
