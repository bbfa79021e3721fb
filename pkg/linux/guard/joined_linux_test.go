package guard

import (
	"net/netip"
	"sort"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"flannel/internal/test/eventually"
	"flannel/internal/test/logtest"
	"flannel/internal/test/nstest"
	"flannel/pkg/dataplane"
)

// What a node has sent before its lease was read is told from what outsiders send, and
// from what was sent long before. Each is counted by the rule.
func TestNodeJoins(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		var log logtest.Log
		l := newLink(t)
		g, err := New(log.Logger(), "", func() {})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range paths {
			g.Put(dataplane.Want, p)
		}
		c := Config{Outer: overVXLAN}
		l.apply(g, c)
		sent := uint64(0)
		send := func(n int, from, inside string) {
			t.Helper()
			for range n {
				l.send(c.outer(said{from: from, inside: inside})[0])
			}
			sent += uint64(n)
			eventually.True(t, from+" is counted", func() bool {
				counted, _, _ := g.Counts()
				return counted[outsider] == sent
			})
		}
		joins := func(what string, want uint64, dst, via string, sources ...string) {
			t.Helper()
			g.Put(dataplane.Want, path(dst, via, sources...))
			l.apply(g, c)
			found, _, joined := g.Counts()
			if have := joined[outsider]; have != want {
				t.Errorf("%s: %d packets are of nodes that have joined, want %d", what, have, want)
			}
			if found[outsider] != sent {
				t.Errorf("%s: the rule counts %d packets, want %d", what, found[outsider], sent)
			}
		}
		send(3, "192.0.2.7", "10.5.7.0")
		send(2, "203.0.113.8", "10.5.8.0")          // the other source of a node
		send(1, "192.0.2.10", "10.5.2.7")           // a node that takes over a subnet of a peer
		send(5, "192.0.2.99", "10.5.7.0")           // an outsider
		send(4, "2001:db8::7", "2001:cafe:42:7::")  // by IPv6
		send(6, "2001:db8::99", "2001:cafe:42:7::") // an outsider
		joins("a peer without packets", 0, "10.5.6.0/24", "192.0.2.6")
		joins("a peer", 3, "10.5.7.0/24", "192.0.2.7")
		joins("another source of a peer", 5, "10.5.8.0/24", "192.0.2.8", "203.0.113.8")
		joins("a subnet that a peer has", 6, "10.5.2.0/24", "192.0.2.10")
		if log.Count("cause="+causeJoined) != 3 || log.Count("cause="+causeJoined, "packets=3", "nodes=1", "node=192.0.2.7") != 1 {
			t.Errorf("log:\n%s", log.String())
		}
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
		g = l.guard(append(paths, path("10.5.7.0/24", "192.0.2.7"), path("10.5.8.0/24", "192.0.2.8", "203.0.113.8"))...)
		joins("after a restart, by IPv6", 10, "2001:cafe:42:7::/64", "2001:db8::7")
		joins("once more", 10, "10.5.11.0/24", "192.0.2.11")
		// What was recorded too long ago stays counted.
		nft(t, "add element inet flannel-guard outsiders4 { 192.0.2.12 counter packets 7 bytes 700 timeout 10m expires 9s }")
		joins("long ago", 10, "10.5.12.0/24", "192.0.2.12")
		c.Enforce = true
		l.apply(g, c)
		send(1, "192.0.2.13", "10.5.13.0")
		joins("packets were dropped", 10, "10.5.13.0/24", "192.0.2.13")
		if _, dropped, _ := g.Counts(); dropped[outsider] != 1 {
			t.Errorf("dropped: %v", dropped)
		}
	})
}

// Whatever system call fails, the packets of a node that has joined are counted once.
func TestNodeJoinsDespiteFailedCalls(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		l := newLink(t)
		g := l.guard()
		c := Config{Outer: overVXLAN}
		l.apply(g, c)
		faults := nstest.NewFaults(t)
		node, subnet := netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("10.5.10.0")
		failed, uncounted := 0, 0
		// A call that fails may end Apply, so only an Apply without a failure shows how many calls there are.
		for call, reached := 1, true; reached; call++ {
			node, subnet = node.Next(), netip.AddrFrom4([4]byte{10, 5, subnet.As4()[2] + 1})
			l.send(c.outer(said{from: node.String(), inside: subnet.String()})[0])
			eventually.True(t, node.String()+" is counted", func() bool {
				counted, _, _ := g.Counts()
				return counted[outsider] == uint64(call)
			})
			g.Put(dataplane.Want, path(subnet.String()+"/24", node.String()))
			faults.Fail(call, unix.ENOBUFS)
			err := g.Apply(t.Context(), dataplane.Options{}, g.config, func() ([]string, error) { return nil, nil })
			calls := faults.Fail(0, 0)
			reached = calls >= call
			switch {
			case err != nil:
				failed++
			case g.peersAdded:
				uncounted++
			}
			if again := g.retry.Err() != nil; again != (err != nil || g.peersAdded) {
				t.Errorf("call %d of %d failed: there is a retry: %t, the error is %v, not counted: %t", call, calls, again, err, g.peersAdded)
			}
			l.apply(g, c)
			if _, _, joined := g.Counts(); joined[outsider] != uint64(call) {
				t.Fatalf("call %d of %d failed: %d packets are of nodes that have joined, want %d", call, calls, joined[outsider], call)
			}
		}
		if failed == 0 || uncounted == 0 {
			t.Errorf("Apply failed %d times, and succeeded %d times without counting; want both", failed, uncounted)
		}
	})
}

// A node that joins has a subnet of a length that no rule looks up yet. When Apply is
// interrupted, the node is a sender only if the rules look that length up: else they would
// take its packets for forged ones. The search finds the first call after which it is one.
func TestNodeJoinsWithAnotherLength(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		l := newLink(t)
		c := Config{Outer: overVXLAN}
		faults := nstest.NewFaults(t)
		// joins makes one of the calls of Apply fail. It reports whether the node is a sender then.
		joins := func(restart bool, failing int) bool {
			g := l.guard(paths[0])
			l.apply(g, c)
			if restart {
				if err := g.Close(); err != nil {
					t.Fatal(err)
				}
				g = l.guard(paths[0])
			}
			defer g.Close() //nolint:errcheck // the test is over
			defer nft(t, "delete table inet flannel-guard")
			g.Put(dataplane.Want, path("10.5.64.0/26", "192.0.2.64"))
			faults.Fail(failing, unix.ENOBUFS)
			_ = g.Apply(t.Context(), dataplane.Options{}, completed(c), func() ([]string, error) { return nil, nil }) // may fail
			faults.Fail(0, 0)
			sends := strings.Contains(nft(t, "list set inet flannel-guard peers4"), "192.0.2.64")
			if sends && !strings.Contains(nft(t, "list chain inet flannel-guard speaker"), "@owners4-26") {
				t.Errorf("restart: %t; call %d failed: the node is a sender before the rules know its subnet", restart, failing)
			}
			return sends
		}
		for _, restart := range []bool{false, true} {
			const enough = 1000 // there are fewer calls
			if sort.Search(enough, func(i int) bool { return joins(restart, i+1) }) == enough {
				t.Errorf("restart: %t; the node is no sender", restart)
			}
		}
	})
}
