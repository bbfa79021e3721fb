package linux

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"flannel/internal/test/nstest"
	"flannel/pkg/dataplane"
	"flannel/pkg/linux/rtnetlink"
)

// dropping is a chain of the guard with a rule that drops packets, which takes the guard's table for one that enforces.
const dropping = "chain found-outsider { drop; };"

// loseTable replaces the guard's table by one that the guard cannot change.
func loseTable(t *testing.T, content string) (release func()) {
	t.Helper()
	run(t, "nft delete table inet flannel-guard")
	return nstest.OwnTable(t, "inet", "flannel-guard", content)
}

// A new peer that the guard would drop, because its set could not be written, gets no
// route yet. The others keep theirs, which somebody else has deleted meanwhile.
func TestGuardHoldsBackNewPeers(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := guarded(t, &dataplane.Guard{Enforce: true})
		m.mustPass()
		release := loseTable(t, dropping)
		former, added := m.state.Paths, newcomer(m)
		m.state.Paths = append(former[:len(former):len(former)], added)
		run(t, "ip route del 10.5.2.0/24")
		m.QueueResync()
		if err := m.pass(); !errors.Is(err, unix.EPERM) {
			t.Fatalf("another program owns the table, and the pass: %v", err)
		}
		routes := run(t, "ip route")
		for _, p := range m.state.Paths {
			if p.Dst.Addr().Is4() && strings.Contains(routes, p.Dst.String()) == (p == added) {
				t.Errorf("the route to %s is there: %t", p.Dst, p == added)
			}
		}
		// What this peer sends is in no tunnel, so that no set has to have its address.
		direct := *added
		direct.Dst, direct.Via, direct.Device, direct.Encap = netip.MustParsePrefix("10.5.101.0/24"), netip.MustParseAddr("192.168.100.101"), "eth0", dataplane.Direct{}
		m.state.Paths = append(m.state.Paths, &direct)
		if err := m.pass(); !errors.Is(err, unix.EPERM) {
			t.Fatalf("another program owns the table, and the pass: %v", err)
		}
		if routes := run(t, "ip route"); !strings.Contains(routes, direct.Dst.String()) || strings.Contains(routes, added.Dst.String()) {
			t.Errorf("with a peer without a tunnel, the routes are %s", routes)
		}
		m.state.Guard = &dataplane.Guard{} // nothing is dropped, so nothing has to wait
		if err := m.pass(); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(run(t, "ip route"), added.Dst.String()) {
			t.Error("audit holds back a peer")
		}
		run(t, "ip route del %s", added.Dst)
		release()
		m.state.Guard = &dataplane.Guard{Enforce: true}
		m.QueueResync()
		m.mustPass()
		if !strings.Contains(run(t, "ip route"), added.Dst.String()) {
			t.Error("there is no route when the set is written")
		}
	})
}

// After a restart, the rules of the former run judge, so that a new peer whose address the sets lack gets no route.
func TestGuardHoldsBackAfterRestart(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := guarded(t, &dataplane.Guard{Enforce: true})
		m.mustPass()
		defer loseTable(t, dropping)()
		added := newcomer(m)
		m.state.Paths = append(m.state.Paths, added)
		m.restart()
		if err := m.pass(); !errors.Is(err, unix.EPERM) {
			t.Fatalf("another program owns the table, and the pass: %v", err)
		}
		if routes := run(t, "ip route"); strings.Contains(routes, added.Dst.String()) {
			t.Errorf("a route to a peer that the guard drops: %s", routes)
		}
	})
}

// If somebody else has deleted the rules, and they cannot be written, nothing is dropped, so
// that no peer has to wait.
func TestGuardWithoutRulesHoldsBackNothing(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := guarded(t, &dataplane.Guard{Enforce: true})
		m.mustPass()
		added := newcomer(m)
		m.state.Paths = append(m.state.Paths, added)
		defer loseTable(t, "")()
		m.QueueResync()
		if err := m.pass(); !errors.Is(err, unix.EPERM) {
			t.Fatalf("another program owns the table, and the pass: %v", err)
		}
		if !strings.Contains(run(t, "ip route"), added.Dst.String()) {
			t.Error("there is no route to a peer that nothing drops")
		}
		if g := m.Guarded(); g.Enforce || g.Problem == "" {
			t.Errorf("the guard without rules: %+v", g)
		}
	})
}

// What the guard could not do in a pass that succeeded is done, although nothing else causes
// another pass.
func TestGuardRetriesAlone(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := guarded(t, nil)
		faults := nstest.NewFaults(t)
		for _, c := range []struct {
			name          string
			former, guard *dataplane.Guard
		}{{"audit", nil, &dataplane.Guard{}}, {"off", &dataplane.Guard{Enforce: true}, nil}} {
			done := func() bool { return strings.Contains(run(t, "nft list tables"), "flannel-guard") == (c.guard != nil) }
			for n, missed := 1, false; !missed; n++ {
				m.state.Guard = c.former
				m.mustPass()
				for len(m.Changes()) > 0 {
					<-m.Changes()
				}
				m.state.Guard = c.guard
				faults.Fail(n, unix.ENOMEM)
				err := m.pass()
				if calls := faults.Fail(0, 0); calls < n {
					t.Fatalf("%s: no failed call is one that the guard misses", c.name)
				}
				missed = err == nil && !done()
			}
			waitFor(t, m, c.name+": a pass that something causes does it", done)
		}
	})
}

// A guard in audit that cannot delete a former peer does not fail the pass. It says so, and causes another pass, in which it
// does it.
func TestGuardInAuditPrunesAlone(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := guarded(t, &dataplane.Guard{})
		all, faults := m.state.Paths, nstest.NewFaults(t)
		pruned := func() bool { return !strings.Contains(elements(t, "peers4"), all[0].Via.String()) }
		for n, missed := 1, false; !missed; n++ {
			m.state.Paths = all
			m.mustPass()
			for len(m.Changes()) > 0 {
				<-m.Changes()
			}
			m.state.Paths = all[2:]
			faults.Fail(n, unix.ENOMEM)
			err := m.pass()
			if calls := faults.Fail(0, 0); calls < n {
				t.Fatalf("after no failed call is the former peer left, and the pass has no error; the last one is %v", err)
			}
			missed = err == nil && !pruned()
		}
		if g := m.Guarded(); !strings.HasPrefix(g.Problem, "former peers") {
			t.Errorf("the guard says %q", g.Problem)
		}
		// FDB entries may cause a pass, too; TestFailedPruneNotifies shows that the guard does.
		waitFor(t, m, "the former peer is gone", pruned)
		if g := m.Guarded(); g.Problem != "" {
			t.Errorf("the former peer is gone, and the guard says %q", g.Problem)
		}
	})
}

// newcomer is the path to a new peer.
func newcomer(m *machine) *dataplane.Path {
	p := *m.state.Paths[0]
	p.Dst, p.Via = netip.MustParsePrefix("10.5.100.0/24"), netip.MustParseAddr("192.168.100.100")
	return &p
}

// Whatever system call fails, there is no route to a new peer that the guard drops, and
// the guard works again afterwards: what the kernel has answered is not taken for the
// answer to the next request.
func TestGuardAfterFailedCalls(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := guarded(t, &dataplane.Guard{Enforce: true})
		m.mustPass()
		former, added := m.state.Paths, newcomer(m)
		faults := nstest.NewFaults(t)
		for n, failed := 1, true; failed && !t.Failed(); n++ {
			m.state.Paths = append(former[:len(former):len(former)], added)
			faults.Fail(n, unix.ENOMEM)
			err := m.pass()
			failed = faults.Fail(0, 0) >= n
			known := strings.Contains(run(t, "nft list set inet flannel-guard peers4"), added.Via.String())
			if strings.Contains(run(t, "ip route"), added.Dst.String()) && !known {
				t.Errorf("call %d failed (%v): there is a route to a peer that the guard drops", n, err)
			}
			for _, paths := range [][]*dataplane.Path{m.state.Paths, former} {
				m.state.Paths = paths
				m.QueueResync()
				for range 3 { // a socket that a fault has broken is opened again
					if err = m.pass(); err == nil {
						break
					}
				}
				if err != nil {
					t.Fatalf("after call %d had failed: %v", n, err)
				}
			}
		}
	})
}

// Entries are added beside the guard's first table. If a call fails, and with it the guard, all routes
// are there, the pass says what the guard lacks, and one of the next passes writes the table.
func TestGuardFailsBesideEntries(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := guarded(t, &dataplane.Guard{Enforce: true})
		faults, unguarded := nstest.NewFaults(t), 0
		for n, failed := 1, true; failed && !t.Failed(); n += 1 + n/8 { // some of the later ones, which are about many rules
			links, err := m.Ensure(t.Context(), m.devices)
			if err != nil {
				t.Fatal(err)
			}
			faults.Fail(n, unix.ENOMEM)
			_, err = m.Apply(t.Context(), links, m.state)
			failed = faults.Fail(0, 0) >= n
			if !m.Guarded().Enforce {
				unguarded++
				if err == nil || !strings.Contains("\n"+err.Error(), "\nguard:") { // others may fail because of the same
					t.Errorf("call %d failed, there is no guard, and the error is %v", n, err)
				}
				routes := run(t, "ip route; ip -6 route")
				for _, p := range m.state.Paths {
					if !strings.Contains(routes, p.Dst.String()) {
						t.Errorf("call %d failed, and there is no route to %s", n, p.Dst)
					}
				}
			}
			for range 3 { // a socket that a fault has broken is opened again
				if err = m.pass(); err == nil {
					break
				}
			}
			if err != nil || !m.Guarded().Enforce {
				t.Fatalf("after call %d had failed: %v, %+v", n, err, m.Guarded())
			}
			run(t, "nft delete table inet flannel-guard; ip link del flannel.1; ip link del flannel-v6.1")
			m.restart()
		}
		if unguarded == 0 {
			t.Error("no failed call is one without which there is no guard")
		}
	})
}

// The interfaces of pods are found although interfaces come and go while they are listed.
func TestPodInterfacesWhileOthersChange(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := guarded(t, &dataplane.Guard{})
		var batch strings.Builder
		for i := range 450 { // pairs
			fmt.Fprintf(&batch, "link add d%[1]d type veth peer name p%[1]d\n", i)
			fmt.Fprintf(&batch, "addr add 10.77.%[2]d.%[3]d/32 dev d%[1]d\naddr add 10.79.%[2]d.%[3]d/32 dev p%[1]d\n", i, i/200, i%200+1)
		}
		run(t, "ip -batch - <<'E'\n%sE", batch.String())
		handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			t.Fatal(err)
		}
		defer handle.Close()
		link, err := handle.LinkByName("d0")
		if err != nil {
			t.Fatal(err)
		}
		addr := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 78, 0, 1), Mask: net.CIDRMask(32, 32)}}
		for range 100 {
			var changes sync.WaitGroup
			changes.Go(func() {
				// Each change interrupts one try at most, so that one is whole, however slow the machine is.
				for range (rtnetlink.Tries - 1) / 2 {
					_, _ = handle.AddrAdd(link, addr), handle.AddrDel(link, addr)
				}
			})
			names, err := m.podInterfaces(m.state.Subnets)
			changes.Wait()
			if err != nil || len(names) != 1 || names[0] != "cni0" {
				t.Fatalf("found %v: %v", names, err)
			}
		}
	})
}
