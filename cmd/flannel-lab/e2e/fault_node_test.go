package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"flannel/cmd/flannel-lab/lab"
)

// TestNodeRunsOut takes resources away from a running flanneld: disk space for
// the subnet file, a writable directory, file descriptors. Everything else must
// keep working, and what failed must succeed once the resource is available
// again.
func TestNodeRunsOut(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 2}, `{"Type":"vxlan"}`+apart)
	n := l.Nodes[0]
	in(t, n.Namespaces, "cp /run/flannel/subnet.env /run/kept; mount -t tmpfs -o size=16k tmpfs /run/flannel; cp /run/kept /run/flannel/subnet.env")
	a, b := pair(t, l)
	must(t, errors.Join(reach(t.Context(), a, b), reach(t.Context(), b, a)))
	p := newBaseline(t, l)
	generation := 0
	// follows checks that new peers are still added.
	follows := func(t *testing.T) {
		t.Helper()
		generation++
		key, v := fakeLease4(1, generation)
		putLease(t, l, key, v)
		waitSynced(t, l, n)
	}
	for _, c := range []struct{ name, harm, undo, says string }{
		{"disk full", "dd if=/dev/zero of=/run/flannel/ballast bs=4k 2>/dev/null || true", "rm /run/flannel/ballast",
			unix.ENOSPC.Error()},
		{"read-only", "mount -o remount,ro /run/flannel", "mount -o remount,rw /run/flannel", unix.EROFS.Error()},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := flood(t, a, b)
			before := in(t, n.Namespaces, "cat /run/flannel/subnet.env")
			mark := len(n.Log())
			in(t, n.Namespaces, c.harm)
			in(t, n.Namespaces, "ip link set eth0 mtu 1400") // the file must get the MTU 1350
			within(t, "/readyz says so", func() error { return unready(t, n, c.says) })
			if after := in(t, n.Namespaces, "cat /run/flannel/subnet.env"); after != before {
				t.Errorf("the file was\n%s\nand is\n%s", before, after)
			}
			follows(t)
			loggedNaming(t, n, mark, "not-in-step", "problem", c.says)
			time.Sleep(time.Second) // several retries
			if records := n.Records(mark).With("cause=not-in-step").Naming("problem", c.says); len(records) > 1 {
				t.Errorf("it was logged %d times:\n%s", len(records), records)
			}
			in(t, n.Namespaces, c.undo)
			envHas(t, n, "FLANNEL_MTU", "1350")
			in(t, n.Namespaces, "ip link set eth0 mtu 1500")
			envHas(t, n, "FLANNEL_MTU", "1450")
			p.check(t)
			f.checkNoLoss(t, c.name)
		})
	}
	t.Run("started with it read-only", func(t *testing.T) {
		in(t, n.Namespaces, "mount -o remount,ro /run/flannel")
		must(t, n.Kill())
		must(t, n.Start())
		follows(t)
		becomesReady(t, n)
		in(t, n.Namespaces, "mount -o remount,rw /run/flannel")
		p.check(t)
	})
	t.Run("file descriptors", func(t *testing.T) {
		f := flood(t, a, b)
		noDescriptors(t, l, p, follows)
		f.checkNoLoss(t, "no file descriptors")
	})
	t.Run("a device without file descriptors", func(t *testing.T) { deviceWithoutDescriptors(t, l, p, a, b) })
}

// withoutDescriptors calls body while flanneld cannot open file descriptors.
func withoutDescriptors(t *testing.T, n *lab.Node, body func()) {
	t.Helper()
	var old unix.Rlimit
	must(t, unix.Prlimit(n.PID(), unix.RLIMIT_NOFILE, nil, &old))
	must(t, unix.Prlimit(n.PID(), unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1, Max: old.Max}, nil))
	body()
	must(t, unix.Prlimit(n.PID(), unix.RLIMIT_NOFILE, &old, nil))
}

// deviceWithoutDescriptors makes flanneld check its device while it cannot open
// file descriptors. A device that cannot be read keeps its routes, and entries
// that the kernel deletes with a device that goes down are restored.
func deviceWithoutDescriptors(t *testing.T, l *lab.Lab, p *baseline, a, b *lab.Pod) {
	n := l.Nodes[0]
	f := flood(t, a, b)
	withoutDescriptors(t, n, func() {
		for _, mtu := range []string{"1400", "1420"} {
			in(t, n.Namespaces, "ip link set flannel.1 mtu "+mtu)
			within(t, "the MTU is restored", func() error {
				return says(t, n, "1450\n", "cat", "/sys/class/net/flannel.1/mtu")
			})
		}
		in(t, n.Namespaces, "ip link set eth0 mtu 1400")
		waitSynced(t, l, n)
	})
	envHas(t, n, "FLANNEL_MTU", "1350")
	f.checkNoLoss(t, "events of devices without file descriptors")
	in(t, n.Namespaces, "ip link set eth0 mtu 1500")
	withoutDescriptors(t, n, func() {
		in(t, n.Namespaces, "ip link set flannel.1 down")
		waitSynced(t, l, n)
		within(t, "packets pass again", func() error { return reach(t.Context(), a, b) })
	})
	p.check(t)
}

func noDescriptors(t *testing.T, l *lab.Lab, p *baseline, follows func(*testing.T)) {
	n, mark := l.Nodes[0], len(l.Nodes[0].Log())
	withoutDescriptors(t, n, func() { checkNoDescriptors(t, l, mark, follows) })
	p.check(t)
}

func checkNoDescriptors(t *testing.T, l *lab.Lab, mark int, follows func(*testing.T)) {
	t.Helper()
	n := l.Nodes[0]
	follows(t) // open connections still work
	in(t, n.Namespaces, "rm /run/flannel/subnet.env; iptables -F FLANNEL-FWD; ip route delete 10.5.1.0/24")
	waitSynced(t, l, n)
	loggedNaming(t, n, mark, "not-in-step", "problem", unix.EMFILE.Error())
	must(t, l.Etcd.Kill())
	must(t, l.Etcd.Start(t.Context()))
	key, v := fakeLease4(2, 1)
	putLease(t, l, key, v)
	logged(t, n, mark, "cause=store-silent")
	if !n.Running() {
		t.Fatal("flanneld has exited")
	}
	time.Sleep(3 * time.Second) // in which the log may not grow fast
	if text := n.Log()[mark:]; strings.Count(text, "\n") > 25 {
		t.Errorf("%d lines in the log:\n%s", strings.Count(text, "\n"), text)
	}
}

// fakeLease4 is like fakePeer in an IPv4-only network.
func fakeLease4(i, generation int) (string, *value) {
	key, v := fakePeer(i, generation)
	key, _, _ = strings.Cut(key, "&")
	v.PublicIPv6, v.BackendV6Data = nil, nil
	return key, v
}

// TestKernelRefusesAnEntry gives flanneld a tunnel device that can hold only
// two FDB entries.
func TestKernelRefusesAnEntry(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 2}, `{"Type":"vxlan"}`+apart)
	n := l.Nodes[0]
	a, b := pair(t, l)
	must(t, errors.Join(reach(t.Context(), a, b), reach(t.Context(), b, a)))
	p := newBaseline(t, l)
	must(t, n.Kill())
	mac := shell(t, n.Namespaces, "cat /sys/class/net/flannel.1/address")
	in(t, n.Namespaces, fmt.Sprintf("ip link del flannel.1; ip link add flannel.1 address %s mtu 1450 type vxlan id 1 dev eth0 local %s dstport 8472 nolearning maxaddress 2", mac, n.IP4))
	must(t, n.Start())
	must(t, n.Ready(t.Context()))
	waitSynced(t, l, n)
	f := flood(t, a, b)
	for i := 1; i <= 3; i++ {
		key, v := fakeLease4(i, 1)
		putLease(t, l, key, v)
	}
	within(t, "/readyz names the entry", func() error { return unready(t, n, "set fdb") })
	within(t, "all other entries exist", func() error {
		got, err := entries(t.Context(), n)
		if stale, missing := differences(got, entriesOf(t, l, n)); err == nil && (stale != 0 || missing != 2) {
			err = fmt.Errorf("%d entries are stale, %d missing", stale, missing)
		}
		return err
	})
	key, _ := fakeLease4(1, 1)
	putLease(t, l, key, nil)
	within(t, "a deletion makes room", func() error {
		got, err := entries(t.Context(), n)
		if stale, missing := differences(got, entriesOf(t, l, n)); err == nil && (stale != 0 || missing != 1) {
			err = fmt.Errorf("%d entries are stale, %d missing", stale, missing)
		}
		return err
	})
	f.checkNoLoss(t, "refused entries")
	in(t, n.Namespaces, "ip link del flannel.1") // it is created again without a limit
	p.check(t)
}

// TestNotificationsAreLost causes more notifications in the kernel of a node
// than the sockets of flanneld can hold.
func TestNotificationsAreLost(t *testing.T) {
	t.Parallel()
	const peers = 5000
	l := bare(t, lab.Options{Nodes: 1})
	must(t, l.SetConfig(t.Context(), `{"Network":"10.0.0.0/8","SubnetMin":"10.200.0.0","Backend":{"Type":"vxlan"}}`))
	n, c := l.Nodes[0], etcdClient(t, l)
	put := func(generation int) (want string) {
		var lines []string
		var ops []clientv3.Op
		for i := range peers {
			dst, mac, public := fmt.Sprintf("10.%d.%d.0", i/250+1, i%250),
				fmt.Sprintf("02:00:%02x:00:%02x:%02x", generation, i/250, i%250),
				fmt.Sprintf("172.%d.%d.%d", 15+generation, i/250+1, i%250+1)
			ops = append(ops, clientv3.OpPut(leasePrefix+dst+"-24", fmt.Sprintf(`{"PublicIP":"%s","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"%s"}}`, public, mac)))
			lines = append(lines, fmt.Sprintf("route %s/24 via %s onlink", dst, dst),
				fmt.Sprintf("neigh %s lladdr %s PERMANENT", dst, mac),
				fmt.Sprintf("fdb %s dst %s self permanent", mac, public))
			if len(ops) == 125 {
				_, err := c.Txn(t.Context()).Then(ops...).Commit()
				must(t, err)
				ops = nil
			}
		}
		return words(strings.Join(lines, "\n"))
	}
	full := func(what, want string) {
		t.Helper()
		within(t, what, func() error {
			out, err := try(t.Context(), n.Namespaces, `ip route show dev flannel.1 | sed -e 's/^/route /' -e 's/ proto 70//'
				ip neigh show dev flannel.1 nud permanent | sed 's/^/neigh /'; bridge fdb show dev flannel.1 | sed 's/^/fdb /'`)
			if got := words(out); err == nil && got != want {
				stale, missing := differences(got, want)
				err = fmt.Errorf("%d entries are stale, %d missing", stale, missing)
			}
			return err
		})
		becomesReady(t, n)
	}
	want := put(1)
	must(t, n.Start())
	full("5,000 peers", want)
	// The commands fail if flanneld restores entries meanwhile.
	const flush = "ip route flush dev flannel.1 || true; ip neigh flush dev flannel.1 nud permanent || true; ip link set flannel.1 down; ip link set flannel.1 up; "
	in(t, n.Namespaces, flush)
	full("flushed while it runs: restored", want)

	mark := len(n.Log())
	must(t, n.Signal(syscall.SIGSTOP))
	// The socket buffer of 16 MB holds some 60,000 notifications.
	in(t, n.Namespaces, flush+`ip link add storm type veth peer name rain; ip link set storm up; ip link set rain up
		for i in 1 2 3 4 5 6 7 8; do for verb in add del; do for j in $(seq 1 40); do for k in $(seq 1 120); do
			echo "route $verb 198.18.$j.$k dev storm"; done; done; done; done > /run/storm
		ip -batch /run/storm; ip link del storm; rm /run/storm`)
	want = put(2)
	must(t, n.Signal(syscall.SIGCONT))
	logged(t, n, mark, "cause=notifications-lost")
	full("flushed and changed while it was paused: restored", want)
	key, _ := leaseOf(t, l, n)
	for _, part := range [][2]string{{leasePrefix, leasePrefix + key},
		{leasePrefix + key + "\x00", clientv3.GetPrefixRangeEnd(leasePrefix)}} {
		_, err := c.Delete(t.Context(), part[0], clientv3.WithRange(part[1]))
		must(t, err)
	}
	eventually(t, "all peers removed, nothing left over", "0 0 0 0", func(ctx context.Context) (string, error) {
		return try(ctx, n.Namespaces, `echo $(ip route show proto 70 | wc -l) $(ip nexthop show proto 70 | wc -l) \
			$(ip neigh show dev flannel.1 nud permanent | wc -l) $(bridge fdb show dev flannel.1 | wc -l)`)
	})
}
