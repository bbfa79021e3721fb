package guard

import (
	"errors"
	"log/slog"
	"math"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"flannel/internal/test/nettest"
	"flannel/internal/test/nstest"
	"flannel/pkg/dataplane"
	"flannel/pkg/linux/rtnetlink"
)

// What tunnels send, in the configurations of these tests.
var (
	overVXLAN = dataplane.TraitsOf(dataplane.VXLAN{VNI: 1})
	overUDP   = dataplane.TraitsOf(dataplane.TUN{})
	overIPIP  = dataplane.TraitsOf(dataplane.IPIP{})
)

// nft can show the table to administrators, other programs can parse what it prints, and
// what it saves can be loaded again: with the nft of this machine and that of the image.
func TestTableCanBeListed(t *testing.T) {
	for name, c := range map[string]Config{
		"vxlan": {Outer: overVXLAN}, "udp": {Outer: overUDP}, "ipip": {Outer: overIPIP}, "host-gw": {},
	} {
		for mode, enforce := range map[string]bool{"audit": false, "enforce": true} {
			t.Run(name+" "+mode, func(t *testing.T) {
				nstest.Run(t, func(t *testing.T) {
					c.Enforce = enforce
					l := newLink(t)
					g := l.guard(paths...)
					l.apply(g, c)
					if err := g.Prune(t.Context(), dataplane.Options{}); err != nil {
						t.Fatal(err)
					}
					if _, outer := c.layout(); outer && !enforce { // with a sender that is recorded
						for _, from := range []string{"192.0.2.99", "2001:db8::99"} {
							l.check(g, "", c, said{from: from, inside: "10.5.2.7", rule: outsider})
						}
					}
					nstest.CheckSavedRules(t, nettest.Tool(t, "image/start"))
				})
			})
		}
	}
}

// A resync reads nothing, and makes no transaction, if nobody has changed nf_tables since the one before it. It repairs
// what somebody has changed.
func TestUnchangedTable(t *testing.T) {
	for name, c := range map[string]Config{
		"vxlan":                          {Outer: overVXLAN},
		"host-gw, wireguard and ipsec":   {}, // no rule looks at the sets of nodes and owners
		"host-gw, and the rules enforce": {Enforce: true},
	} {
		t.Run(name, func(t *testing.T) {
			nstest.Run(t, func(t *testing.T) {
				l := newLink(t)
				g := l.guard(paths...)
				faults := nstest.NewFaults(t)
				resync := func() (calls int) {
					g.Relist()
					faults.Fail(math.MaxInt32, unix.EIO) // counts calls
					l.apply(g, c)
					return faults.Fail(0, 0)
				}
				l.apply(g, c)
				before := rtnetlink.TablesGeneration()
				first := resync()
				if second := resync(); second >= first/2 || before == 0 || rtnetlink.TablesGeneration() != before {
					t.Errorf("%d calls after %d; the generation is %d, before %d", second, first, rtnetlink.TablesGeneration(), before)
				}
				nft(t, "flush set inet flannel-guard peers4")
				resync()
				if !strings.Contains(nft(t, "list set inet flannel-guard peers4"), "192.0.2.2") {
					t.Error("the set was not repaired")
				}
			})
		})
	}
}

// A set that no rule looks at, and that somebody has replaced by one of another type, is made again.
func TestReplacedSet(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		l := newLink(t)
		g := l.guard(paths[:1]...) // a set of intervals has room for one address, and refuses several
		l.apply(g, Config{})
		want := nft(t, "list set inet flannel-guard nodes4")
		for _, foreign := range []string{
			"set inet flannel-guard nodes4 { type inet_service; }",
			"set inet flannel-guard nodes4 { type ipv4_addr; flags interval; }",
			"set inet flannel-guard nodes4 { type ipv4_addr; timeout 1h; }",
			"map inet flannel-guard nodes4 { type ipv4_addr : mark; }",
		} {
			nft(t, "delete set inet flannel-guard nodes4; add "+foreign)
			g.changed()
			l.apply(g, Config{})
			if have := nft(t, "list set inet flannel-guard nodes4"); have != want {
				t.Errorf("after %s, the set is\n%s\nwant\n%s", foreign, have, want)
			}
		}
	})
}

// A notification outvotes the generation: the kernel may have raised it before others saw the change, and check read both.
func TestNotificationOutvotesGeneration(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		l := newLink(t)
		g, c := l.guard(paths...), Config{Outer: overVXLAN}
		l.apply(g, c)
		nft(t, "flush chain inet flannel-guard arriving")
		g.compared = rtnetlink.TablesGeneration()
		g.changed()
		l.apply(g, c)
		if text := nft(t, "list chain inet flannel-guard arriving"); !strings.Contains(text, "goto outer") {
			t.Errorf("the chain was not repaired:\n%s", text)
		}
	})
}

// What no rule looks at, and somebody has deleted, is made again: without tunnels, the sets of nodes; of rules that
// drop, the sets of outsiders; of rules that count, the counters of what is dropped; of all, that of nodes that have joined.
func TestDeletedObjects(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		counts, drops := Config{Outer: overVXLAN}, Config{Outer: overVXLAN, Enforce: true, Trial: 1} // 1 ns: the second Apply ends it
		for what, c := range map[string]Config{
			"set inet flannel-guard nodes4":                     {},
			"set inet flannel-guard outsiders4":                 drops,
			"counter inet flannel-guard " + droppedBy(outsider): counts,
			"counter inet flannel-guard " + joinedBy(outsider):  counts,
		} {
			l := &link{t: t}
			g := l.guard(paths...)
			l.apply(g, c)
			l.apply(g, c)
			nft(t, "delete "+what)
			g.changed()
			l.apply(g, c)
			nft(t, "list "+what)
			if enforces, _, _ := g.Enforces(); enforces != c.Enforce {
				t.Errorf("%s: the rules drop: %t", what, enforces)
			}
			if err := errors.Join(g.Apply(t.Context(), dataplane.Options{}, nil, nil), g.Close()); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
}

// A kernel without nf_tables has no table of ours, so that a cleanup has nothing to do.
func TestKernelWithoutTables(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		g, err := New(slog.New(slog.DiscardHandler), "", func() {})
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close() //nolint:errcheck // not what is tested
		faults := nstest.NewFaults(t)
		for _, errno := range []unix.Errno{unix.EINVAL, unix.EOPNOTSUPP, unix.EPROTONOSUPPORT} {
			faults.Fail(1, errno) // the request
			removed, err := g.Remove(false)
			if calls := faults.Fail(0, 0); len(removed) > 0 || err != nil || calls == 0 {
				t.Errorf("%v: removed %q, %v; want nothing and no error (%d calls)", errno, removed, err, calls)
			}
		}
		faults.Fail(1, unix.ENOBUFS)
		if _, err := g.Remove(false); !errors.Is(err, unix.ENOBUFS) {
			t.Errorf("error %v, want one of the kernel that could not answer", err)
		}
		faults.Fail(0, 0)
	})
}

// A table whose deletion has failed is deleted by the next pass.
func TestRemoveAgain(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		g, err := New(slog.New(slog.DiscardHandler), "", func() {})
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close() //nolint:errcheck // not what is tested
		apply := func(c *Config) error {
			return g.Apply(t.Context(), dataplane.Options{}, c, func() ([]string, error) { return nil, nil })
		}
		if err := apply(&Config{}); err != nil {
			t.Fatal(err)
		}
		faults := nstest.NewFaults(t)
		faults.Fail(2, unix.ENOBUFS) // the request after drain
		if err := apply(nil); !errors.Is(err, unix.ENOBUFS) {
			t.Fatal(err)
		}
		faults.Fail(0, 0)
		if err := apply(nil); err != nil {
			t.Fatal(err)
		}
		if table, err := g.kernelTable(); table != nil || err != nil {
			t.Errorf("the table is there: %v, %v", table, err)
		}
	})
}

// A failed list of the sets, after which the rules are written all the same, leaves no
// answers that would be taken for those to the rules.
func TestUnneededSetsAfterError(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		g, err := New(slog.New(slog.DiscardHandler), "", func() {})
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close() //nolint:errcheck // not what is tested
		if err := g.Apply(t.Context(), dataplane.Options{}, &Config{}, func() ([]string, error) { return nil, nil }); err != nil {
			t.Fatal(err)
		}
		raw, err := g.conn.socket.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		faults := nstest.NewFaults(t)
		faults.Fail(2, unix.ENOBUFS) // the answer
		gone := g.unneededSets()
		if calls := faults.Fail(0, 0); len(gone) > 0 || calls < 2 {
			t.Errorf("%d unneeded sets, and %d calls; want none, and a failed one", len(gone), calls)
		}
		var unread error
		if err := raw.Control(func(fd uintptr) {
			_, _, unread = unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_DONTWAIT|unix.MSG_PEEK)
		}); err != nil || !errors.Is(unread, unix.EAGAIN) {
			t.Errorf("answers are left: %v, %v; want %v", err, unread, unix.EAGAIN)
		}
	})
}
