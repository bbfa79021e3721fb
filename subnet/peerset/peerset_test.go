package peerset

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"flannel/subnet"
)

const window = 5 * time.Minute

// began is when a test begins; only differences count.
var began = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// lease of node i has 10.1.i.0/24 and is reached at 192.168.1.i.
func lease(i int) *subnet.Lease { return leaseAt(i, i) }

func leaseAt(i, address int) *subnet.Lease {
	return &subnet.Lease{Name: name(i), Since: 1, Backend: "vxlan", V4: subnet.Endpoint{
		Subnet:   netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(1 + i>>8), byte(i), 0}), 24),
		PublicIP: netip.AddrFrom4([4]byte{192, 168, byte(1 + address>>8), byte(address)})}}
}

func name(i int) string { return fmt.Sprintf("n%05d", i) }

func has(l *subnet.Lease) Change { return Change{Name: l.Name, Entry: Entry{Lease: l}} }

func gone(numbers ...int) (changes []Change) {
	for _, i := range numbers {
		changes = append(changes, Change{Name: name(i), Deleted: true})
	}
	return changes
}

func span(from, to int) (all []int) {
	for i := from; i <= to; i++ {
		all = append(all, i)
	}
	return all
}

// filled is the set of node 0 with peers 1 to n.
func filled(n int) *Set {
	s := New(name(0), window)
	all := []Change{has(lease(0))}
	for _, i := range span(1, n) {
		all = append(all, has(lease(i)))
	}
	s.ApplyAll(all, false, began)
	return s
}

// peers are the numbers of the leases, those of retained ones in parentheses.
func peers(s *Set) string {
	var all []string
	set := s.Subnets()
	retained := map[*subnet.Lease]bool{}
	for _, r := range set.Retained {
		retained[r.Lease] = true
	}
	for _, l := range set.Leases {
		number, _ := strconv.Atoi(l.Name[1:])
		text := strconv.Itoa(number)
		if retained[l] {
			text = "(" + text + ")"
		}
		all = append(all, text)
	}
	return strings.Join(all, " ")
}

// step is one change and what the set is after it.
type step struct {
	what     string
	after    time.Duration // since the step before
	do       func(s *Set, now time.Time)
	want     string
	inForce  bool
	deadline time.Duration // of Next, since the beginning; 0: none
}

func apply(replaced bool, changes ...Change) func(*Set, time.Time) {
	return func(s *Set, now time.Time) { s.Apply(changes, replaced, now) }
}

func run(t *testing.T, s *Set, steps []step) {
	t.Helper()
	now := began
	for _, st := range steps {
		now = now.Add(st.after)
		st.do(s, now)
		if got := peers(s); got != st.want || s.InForce() != st.inForce {
			t.Errorf("%s: %s, in force %t; want %s, %t", st.what, got, s.InForce(), st.want, st.inForce)
		}
		if next := s.Next(); next.IsZero() != (st.deadline == 0) || !next.IsZero() && next.Sub(began) != st.deadline {
			t.Errorf("%s: next %v, want %v after the beginning", st.what, next.Sub(began), st.deadline)
		}
	}
}

func nothing(s *Set, now time.Time) { s.Expire(now) }

// What is within the limit goes at once; more than it is retained, the first of the burst included, until its time is
// over; who is back is a peer like any other.
func TestMassWithdrawal(t *testing.T) {
	run(t, filled(6), []step{
		{what: "three of six", do: apply(false, gone(1, 2, 3)...), want: "4 5 6", deadline: window},
		{what: "and one more", after: time.Minute, do: apply(false, gone(4)...), want: "(1) (2) (3) (4) 5 6", inForce: true, deadline: window},
		{what: "one is back", after: time.Minute, do: apply(false, has(lease(2))), want: "(1) 2 (3) (4) 5 6", inForce: true, deadline: window},
		{what: "two are back: the others stay", do: apply(false, has(lease(1))), want: "1 2 (3) (4) 5 6", inForce: true, deadline: window},
		{what: "the time of the first is over", after: 3 * time.Minute, do: nothing, want: "1 2 (4) 5 6", inForce: true, deadline: window + time.Minute},
		{what: "of the last, too", after: time.Minute, do: nothing, want: "1 2 5 6"},
		{what: "then it is counted anew", do: apply(false, gone(1, 2, 5)...), want: "6", deadline: 2*window + time.Minute},
	})
}

func TestLimit(t *testing.T) {
	for _, c := range []struct {
		peers, gone int
		retained    bool
	}{{3, 3, false}, {4, 4, true}, {4, 3, false}, {15, 4, true}, {20, 4, false}, {21, 4, false}, {20, 5, true}, {25, 5, false},
		{100, 20, false}, {100, 21, true}, {1000, 200, false}, {1000, 1000, true}} {
		for _, how := range []string{"at once", "one after another", "overwritten"} {
			s, changes := filled(c.peers), gone(span(1, c.gone)...)
			switch how {
			case "overwritten":
				for i := range changes {
					changes[i].Reject = "garbage"
				}
				fallthrough
			case "at once":
				s.Apply(changes, false, began)
			default:
				for i, g := range changes {
					s.Apply([]Change{g}, false, began.Add(time.Duration(i)*window/2/time.Duration(c.gone)))
				}
			}
			want := 0
			if c.retained {
				want = c.gone
			}
			if got := len(s.Subnets().Retained); got != want || len(s.Subnets().Leases) != c.peers-c.gone+want {
				t.Errorf("%d of %d gone, %s: %d retained, want %d", c.gone, c.peers, how, got, want)
			}
		}
	}
}

// Who claims what a retained peer has shows that it is gone. The same counts before it is retained.
func TestDisplaced(t *testing.T) {
	wide := lease(9)
	wide.V4.Subnet = netip.MustParsePrefix("10.1.4.0/23") // around those of 4 and 5
	run(t, filled(6), []step{
		{what: "all but one", do: apply(false, gone(1, 2, 3, 4, 5)...), want: "(1) (2) (3) (4) (5) 6", inForce: true, deadline: window},
		{what: "the address of one", do: apply(false, has(leaseAt(8, 1))), want: "(2) (3) (4) (5) 6 8", inForce: true, deadline: window},
		{what: "the subnets of two", do: apply(false, has(wide)), want: "(2) (3) 9 6 8", inForce: true, deadline: window},
		{what: "an unreadable entry by its name", do: apply(false, Change{Name: name(2), Entry: Entry{Reject: "garbage"}}), want: "(2) (3) 9 6 8", inForce: true, deadline: window},
		{what: "and gone", do: apply(false, gone(2)...), want: "(2) (3) 9 6 8", inForce: true, deadline: window},
	})
	run(t, filled(6), []step{ // nodes that come under other names do not count
		{what: "renamed", do: apply(false, append(gone(1, 2, 3), has(leaseAt(11, 1)), has(leaseAt(12, 2)))...), want: "4 5 6 11 12", deadline: window},
		{what: "the newcomer first", do: apply(false, has(leaseAt(14, 4))), want: "4 5 6 11 12 14", deadline: window},
		{what: "then the former one goes", do: apply(false, gone(4)...), want: "5 6 11 12 14", deadline: window},
		{what: "two more", do: apply(false, gone(5, 6)...), want: "11 12 14", deadline: window},
		{what: "which is the limit", do: apply(false, gone(11)...), want: "(3) (5) (6) (11) 12 14", inForce: true, deadline: window},
	})
}

func TestAccepted(t *testing.T) {
	accept := func(s *Set, _ time.Time) { s.Accept() }
	run(t, filled(12), []step{
		{what: "most", do: apply(false, gone(span(1, 8)...)...), want: "(1) (2) (3) (4) (5) (6) (7) (8) 9 10 11 12", inForce: true, deadline: window},
		{what: "accepted", do: accept, want: "9 10 11 12"},
		{what: "it is counted anew", do: apply(false, gone(9, 10, 11)...), want: "12", deadline: window},
		{what: "accepted though within the limit", do: accept, want: "12"},
	})
}

// Peers that a replaced store lacks stay for a day, over ordinary lists, whatever their number; what is deleted in the
// new store counts as ever.
func TestReplacedStore(t *testing.T) {
	whole := func(replaced bool, changes ...Change) func(*Set, time.Time) {
		return func(s *Set, now time.Time) { s.ApplyAll(changes, replaced, now) }
	}
	run(t, filled(4), []step{
		{what: "emptied", do: whole(true), want: "(1) (2) (3) (4)", deadline: ReplacedFor},
		{what: "one is back", do: apply(false, has(lease(3))), want: "(1) (2) 3 (4)", deadline: ReplacedFor},
		{what: "another list", do: whole(false, has(lease(3))), want: "(1) (2) 3 (4)", deadline: ReplacedFor},
		{what: "a second before its end", after: ReplacedFor - time.Second, do: apply(false, has(leaseAt(8, 4))), want: "(1) (2) 3 8", deadline: ReplacedFor},
		{what: "deleted indeed", do: apply(false, gone(3)...), want: "(1) (2) 8", deadline: ReplacedFor},
		{what: "one that it lacked, too", do: apply(false, gone(1)...), want: "(2) 8", deadline: ReplacedFor},
		{what: "one has no lease yet", do: apply(false, Change{Name: name(2), Entry: Entry{Windows: true}}), want: "(2) 8", deadline: ReplacedFor},
		{what: "a day after", after: time.Second, do: nothing, want: "8", deadline: ReplacedFor - time.Second + window},
	})
	s := New(name(0), 0)
	run(t, s, []step{
		{what: "without retention", do: whole(false, has(lease(1)), has(lease(2)), has(lease(3)), has(lease(4))), want: "1 2 3 4"},
		{what: "what is deleted goes", do: apply(false, gone(1, 2, 3, 4)...), want: ""},
		{what: "new ones", do: apply(false, has(lease(5))), want: "5"},
		{what: "but a replaced store is one", do: whole(true), want: "(5)", deadline: ReplacedFor},
	})
}

func TestOwn(t *testing.T) {
	own := func(i int) func(*Set, time.Time) { return func(s *Set, _ time.Time) { s.SetOwn(name(i)) } }
	run(t, filled(5), []step{
		{what: "our own goes", do: apply(false, gone(0)...), want: "1 2 3 4 5"},
		{what: "it is another", do: own(2), want: "1 3 4 5"},
		{what: "and there", do: apply(false, has(lease(0))), want: "0 1 3 4 5"},
		{what: "all go", do: apply(false, gone(span(0, 5)...)...), want: "(0) (1) (3) (4) (5)", inForce: true, deadline: window},
		{what: "a retained one is ours", do: own(4), want: "(0) (1) (3) (5)", inForce: true, deadline: window},
	})
}

// A lease that says what it said before keeps its pointer, whatever happened to it meanwhile.
func TestPointersAreKept(t *testing.T) {
	s := filled(100)
	before := s.Subnets()
	again := func() (all []Change) {
		for _, i := range span(1, 100) {
			all = append(all, has(lease(i)))
		}
		return all
	}
	if s.ApplyAll(again(), false, began) || s.ApplyAll(again(), true, began) {
		t.Error("the set differs although nothing changed")
	}
	s.Apply(gone(span(1, 99)...), false, began)
	if !slices.Equal(s.Subnets().Leases, before.Leases) {
		t.Error("retained: other leases than before")
	}
	s.Apply(again(), false, began)
	if after := s.Subnets(); !slices.Equal(after.Leases, before.Leases) || len(after.Retained) > 0 {
		t.Error("back: other leases than before")
	}
	younger := lease(7)
	younger.Since = 2
	if !s.Apply([]Change{has(younger)}, false, began) || s.Subnets().Leases[6] != younger {
		t.Error("a lease that was made anew is not the younger one")
	}
}

func TestWindows(t *testing.T) {
	s := New(name(0), window)
	windows := func(i int) Change { return Change{Name: name(i), Entry: Entry{Lease: lease(i), Windows: true}} }
	is := func(what, want string) {
		t.Helper()
		if got := s.Subnets().Windows; got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	s.ApplyAll([]Change{windows(0), windows(3), windows(2), has(lease(1)), has(lease(4)), {Name: name(5), Entry: Entry{Windows: true}}}, false, began)
	is("at first", name(2))
	s.Apply(gone(1, 2, 3, 4), false, began)
	is("retained", name(2))
	s.Expire(began.Add(window))
	is("without a lease", name(5))
	s.Apply(gone(5), false, began.Add(window))
	is("none", "")
}

func BenchmarkOneChangeAmong10000(b *testing.B) {
	s := filled(10_000)
	for i := 0; b.Loop(); i++ {
		s.Apply([]Change{has(leaseAt(77, 20_000+i%10_000))}, false, began)
	}
}

func BenchmarkOneLeavesAmong10000(b *testing.B) {
	s := filled(10_000)
	for b.Loop() {
		s.Apply(gone(77), false, began)
		s.Apply([]Change{has(lease(77))}, false, began)
	}
}

// Half of the peers go at once, and come back one by one.
func BenchmarkHalfOf10000(b *testing.B) {
	for b.Loop() {
		s := filled(10_000)
		s.Apply(gone(span(1, 5000)...), false, began)
		for _, i := range span(1, 5000) {
			s.Apply([]Change{has(lease(i))}, false, began)
		}
	}
}
