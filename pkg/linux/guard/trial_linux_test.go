package guard

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"flannel/internal/test/eventually"
	"flannel/internal/test/nstest"
	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
)

// A flood of others neither hides a packet of a peer, which the rules would drop, nor
// delays the end of the trial.
func TestTrialBesideFlood(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		l := newLink(t)
		c := Config{Outer: overVXLAN, Enforce: true, Trial: time.Hour}
		for _, hidden := range []bool{false, true} {
			g := l.guard(paths...)
			l.apply(g, c)
			began := time.Now()
			_, before, _ := g.Enforces()
			want := uint64(0)
			send := func(n int, s said) { // fewer than fit into the kernel's queue
				for range n {
					l.send(c.outer(s)[0])
				}
				want += uint64(n)
				eventually.Nil(t, "all packets are counted", func() error {
					if counted, _, _ := g.Counts(); counted[outsider] < want {
						return fmt.Errorf("%d of %d packets are counted", counted[outsider], want)
					}
					return nil
				})
			}
			for range 10 {
				send(100, said{from: "192.0.2.98", inside: "172.16.0.1"})
			}
			if hidden {
				send(1, said{from: "192.0.2.97", inside: "10.5.2.7"}) // a peer behind NAT
			}
			if enforces := g.mayEnforce(c, began.Add(2*time.Hour)); enforces == hidden {
				t.Errorf("it enforces: %t; a packet of a peer was there: %t", enforces, hidden)
			}
			if _, waiting, last := g.Enforces(); hidden && (waiting != before || last == "") {
				t.Errorf("the reason is %q, before %q; the packet %q", waiting, before, last)
			}
			if hidden && (g.mayEnforce(c, began.Add(2*time.Hour+59*time.Minute)) || !g.mayEnforce(c, began.Add(4*time.Hour))) {
				t.Error("it does not enforce an hour after that packet was noticed")
			}
			if err := g.Apply(t.Context(), dataplane.Options{}, nil, nil); err != nil {
				t.Fatal(err)
			}
			if err := g.Close(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// While counters cannot be read, the trial is delayed, and no packet is reported. Nor is one if counters start anew. A trial
// that begins anew does not wait for the packet of the earlier one, even if its first reading fails.
func TestTrialCountersUnread(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		l, c, faults := newLink(t), Config{Outer: overVXLAN, Enforce: true, Trial: time.Hour}, nstest.NewFaults(t)
		g := l.guard(paths...)
		l.apply(g, c)
		began := time.Now()
		look := func(after time.Duration, failing bool) (enforces bool, last string) {
			if failing {
				faults.Fail(1, unix.ENOBUFS)
			}
			enforces = g.mayEnforce(c, began.Add(after))
			faults.Fail(0, 0)
			return enforces, g.trial.last
		}
		if _, last := look(time.Minute, true); last != "" {
			t.Errorf("counters were not read, and this was found: %s", last)
		}
		l.send(c.outer(said{from: "192.0.2.97", inside: "10.5.2.7"})[0])
		eventually.Nil(t, "the packet is counted", func() error {
			if n, known := g.claims(); n != 1 || !known {
				return fmt.Errorf("%d packets are counted, known: %t", n, known)
			}
			return nil
		})
		if _, last := look(2*time.Minute, false); last == "" {
			t.Error("the packet was not noticed")
		}
		_, _ = look(3*time.Minute, true)
		_, _ = look(4*time.Minute, false)
		if enforces, _ := look(62*time.Minute, false); enforces {
			t.Error("it enforces less than an hour after the counters were not read")
		}
		g.config = nil // as after a failed write
		_, _ = look(62*time.Minute, true)
		g.config = completed(c)
		if _, last := look(62*time.Minute, false); last != "" {
			t.Errorf("a new trial waits for an earlier packet: %s", last)
		}
		nft(t, "reset counters table inet flannel-guard")
		if _, last := look(62*time.Minute, false); last != "" {
			t.Errorf("counters started anew, and this was found: %s", last)
		}
		_, _ = look(63*time.Minute, true)
		_, _ = look(64*time.Minute, false)
		if enforces, _ := look(123*time.Minute, false); !enforces {
			t.Error("it does not enforce an hour after the counters were not read")
		}
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// After the guard has made counters anew in a pass, a trial notices a packet although as many were counted before.
func TestTrialCountersAnew(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		l, c := newLink(t), Config{Outer: overVXLAN, Enforce: true, Trial: time.Hour}
		for what, harm := range map[string]string{
			"a set of another type": "flush table inet flannel-guard; delete set inet flannel-guard peers4; add set inet flannel-guard peers4 { type inet_service; }",
			"a counter is gone":     "delete counter inet flannel-guard " + joinedBy(outsider),
		} {
			g := l.guard(paths...)
			send := func() {
				l.send(c.outer(said{from: "192.0.2.97", inside: "10.5.2.7"})[0])
				eventually.Nil(t, what+": the packet is counted", func() error {
					if n, known := g.claims(); n != 1 || !known {
						return fmt.Errorf("%d packets are counted, known: %t", n, known)
					}
					return nil
				})
			}
			l.apply(g, c)
			send()
			nft(t, harm)
			g.changed()
			l.apply(g, c)
			began := time.Now()
			if n, known := g.claims(); n != 0 || !known {
				t.Errorf("%s: %d packets are counted, known: %t, want none", what, n, known)
			}
			send()
			for _, after := range []time.Duration{30 * time.Minute, 80 * time.Minute} { // the first one notices the packet
				if g.mayEnforce(c, began.Add(after)) {
					t.Errorf("%s: it enforces %v after the counters began anew", what, after)
				}
			}
			if err := errors.Join(g.Apply(t.Context(), dataplane.Options{}, nil, nil), g.Close()); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// A trial looks for packets long before it could end.
func TestTrialLooksOften(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		l, due := newLink(t), make(chan struct{}, 1)
		g, err := New(slog.New(slog.DiscardHandler), "", func() { reconcile.Notify(due) })
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close() //nolint:errcheck // not what is tested
		l.apply(g, Config{Outer: overVXLAN, Enforce: true, Trial: time.Hour})
		select {
		case <-due:
		case <-time.After(time.Minute):
			t.Error("nothing causes a pass that would notice a packet")
		}
	})
}

// A trial lasts as long as rules find nothing. It goes on neither while the guard is off, nor
// while its rules cannot be written, nor while some of them are missing.
func TestTrialNeedsRules(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		interfaces := func() ([]string, error) { return nil, nil }
		for name, interrupt := range map[string]func(g *Guard, c *Config) error{
			"a flushed chain": func(g *Guard, _ *Config) error {
				nft(t, "flush chain inet flannel-guard arriving")
				g.Relist()
				return nil
			},
			"off": func(g *Guard, _ *Config) error { return g.Apply(t.Context(), dataplane.Options{}, nil, interfaces) },
			"another program's table": func(g *Guard, c *Config) error {
				nft(t, "delete table inet flannel-guard")
				release := nstest.OwnTable(t, "inet", "flannel-guard", "")
				defer release()
				g.Relist()
				if err := g.Apply(t.Context(), dataplane.Options{}, c, interfaces); !errors.Is(err, unix.EPERM) {
					return fmt.Errorf("another program owns the table, and the error: %w", err)
				}
				g.Relist()
				return nil
			},
		} {
			l := &link{t: t}
			g := l.guard(paths...)
			c := Config{Outer: overVXLAN, Enforce: true, Trial: time.Second}
			l.apply(g, c)
			ended := time.Now().Add(c.Trial)
			if err := interrupt(g, completed(c)); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			eventually.True(t, name+": the trial would have ended", func() bool { return time.Now().After(ended) })
			l.apply(g, c)
			if enforces, _, _ := g.Enforces(); enforces {
				t.Errorf("%s: the rules drop without a trial", name)
			}
			if err := errors.Join(g.Apply(t.Context(), dataplane.Options{}, nil, interfaces), g.Close()); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// An Apply that ends a trial, or whose caller tries again, needs no timer of the trial: a time
// in the past would cause one pass after the other.
func TestNothingIsDueAfterTrial(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		l := &link{t: t}
		g := l.guard(paths...)
		defer g.Close() //nolint:errcheck // not what is tested
		c, unread := Config{Outer: overVXLAN, Enforce: true, Trial: time.Hour}, errors.New("interfaces cannot be read")
		fails := func() error {
			g.Relist()
			return g.Apply(t.Context(), dataplane.Options{}, completed(c), func() ([]string, error) { return nil, unread })
		}
		off := func() error { return g.Apply(t.Context(), dataplane.Options{}, nil, nil) }
		for name, step := range map[string]struct {
			apply func() error
			want  error
		}{"it fails": {fails, unread}, "it is off": {off, nil}} {
			l.apply(g, c)
			if err := step.apply(); !errors.Is(err, step.want) {
				t.Fatalf("%s: error %v, want %v", name, err, step.want)
			}
			if g.due.Stop() {
				t.Errorf("%s: the timer runs", name)
			}
		}
	})
}

// A trial that has ended does not begin again because the rules that drop could not be written, whatever call failed. Every
// twentieth call is tried. It begins again after Enforce was switched off.
func TestPassedTrial(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		l := &link{t: t}
		interfaces := func() ([]string, error) { return nil, nil }
		c, faults := Config{Outer: overVXLAN, Enforce: true, Trial: 1}, nstest.NewFaults(t) // 1 ns: the second Apply ends it
		unwritten := 0
		for call, failed := 1, true; failed; call += 20 {
			g := l.guard(paths...)
			failed = false
			for _, off := range []bool{false, true} {
				c.Trial = 1
				l.apply(g, c)
				faults.Fail(call, unix.ENOBUFS)
				_ = g.Apply(t.Context(), dataplane.Options{}, completed(c), interfaces) // may fail
				failed = faults.Fail(0, 0) >= call || failed
				if g.trial.passed && !g.dropping {
					unwritten++
				}
				if off {
					c.Enforce = false
					l.apply(g, c)
					c.Enforce, c.Trial = true, time.Hour
				}
				l.apply(g, c)
				if enforces, waiting, _ := g.Enforces(); enforces == off {
					t.Errorf("call %d failed, switched off: %t; the rules drop: %t: %s", call, off, enforces, waiting)
				}
				if err := g.Apply(t.Context(), dataplane.Options{}, nil, nil); err != nil {
					t.Fatal(err)
				}
			}
			if err := g.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if unwritten < 2 {
			t.Errorf("%d trials ended without rules that drop", unwritten)
		}
	})
}

// nft runs a command of nft.
func nft(t *testing.T, command string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(command)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
	return string(out)
}

// What is of another kind under the names of the guard is replaced, and what an earlier
// version or somebody else has left in the table is deleted. The rules drop as before, also
// after a restart if some that drop are left.
func TestTableMadeAnew(t *testing.T) {
	for name, harm := range map[string]string{
		"a set of another type":                                 "delete table inet flannel-guard\ntable inet flannel-guard { set peers4 { type inet_service; }; }",
		"a described set of another type, the first of several": "delete table inet flannel-guard\ntable inet flannel-guard { set nodes4 { type inet_service; }; }",
		"a chain at another hook":                               "delete table inet flannel-guard\ntable inet flannel-guard { chain leaving { type filter hook output priority 0; }; }",
		"a table that is dormant":                               "add table inet flannel-guard { flags dormant; }",
		"a chain that drops":                                    "add chain inet flannel-guard arriving { policy drop; }",
		"an earlier version": `table inet flannel-guard { set owners4 { type ipv4_addr . ipv4_addr . inet_service; elements = { 192.0.2.2 . 10.5.2.0 . 24 }; }
			chain pod-outer { drop; }; chain port { ip saddr . ip daddr . udp dport @owners4 goto pod-outer; }; chain speaker { goto port; }; }`,
		"an earlier version that did not count what it dropped": `delete table inet flannel-guard
			table inet flannel-guard { counter outsider { packets 7 bytes 700; }; counter of-all { packets 3 bytes 30; }; chain pod-outer { counter name outsider drop; }; }`,
	} {
		for _, restarted := range []bool{false, true} {
			if restarted && strings.HasPrefix(harm, "delete table") {
				continue // no rule says that the trial has passed
			}
			t.Run(fmt.Sprintf("%s, restarted %t", name, restarted), func(t *testing.T) {
				nstest.Run(t, func(t *testing.T) {
					l := newLink(t)
					c := Config{Outer: overVXLAN, Enforce: true}
					g := l.guard(paths...)
					l.apply(g, c)
					want := nft(t, "list table inet flannel-guard")
					nft(t, harm)
					if restarted {
						if err := g.Close(); err != nil {
							t.Fatal(err)
						}
						g = l.guard(paths...)
					}
					g.Relist()
					c.Trial = time.Hour // which has passed
					l.apply(g, c)
					if have := nft(t, "list table inet flannel-guard"); have != want {
						t.Errorf("the table is\n%s\nwant\n%s", have, want)
					}
					if enforces, waiting, _ := g.Enforces(); !enforces {
						t.Errorf("there is another trial: %s", waiting)
					}
				})
			})
		}
	}
}

// Elements are printed as people write them.
func TestElementText(t *testing.T) {
	six, four := netip.MustParseAddr("2001:db8::2"), netip.MustParseAddr("192.0.2.2")
	for want, e := range map[string]element{
		"2001:db8::2": peer(six), "192.0.2.2": peer(four), "cni0": newElement(codeOf(pods), []byte(ifname("cni0"))...), "fifteen-letters": newElement(codeOf(pods), []byte(ifname("fifteen-letters"))...),
		"2001:db8::2 for 2001:cafe:42:2::/64": owner(six, netip.MustParsePrefix("2001:cafe:42:2::/64")),
		"192.0.2.2 for 10.5.2.0/24":           owner(four, netip.MustParsePrefix("10.5.2.0/24")),
		"3236:3234::":                         node(netip.MustParseAddr("3236:3234::")), // letters
	} {
		if e.String() != want {
			t.Errorf("%q, want %q", e, want)
		}
	}
}
