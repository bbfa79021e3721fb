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

// began is the start of each test.
var began = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// lease returns the lease of node i: 10.1.i.0/24 at 192.168.1.i.
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

func span(from, to int) (numbers []int) {
	for i := from; i <= to; i++ {
		numbers = append(numbers, i)
	}
	return numbers
}

// filled returns the set of node 0, with peers 1 to n.
func filled(n int) *set {
	s := newSet(name(0), window, false)
	list := []Change{has(lease(0))}
	for _, i := range span(1, n) {
		list = append(list, has(lease(i)))
	}
	s.ApplyAll(list, false, began)
	return s
}

// peers returns the numbers of the peers, retained ones in parentheses.
func peers(s *set) string {
	var numbers []string
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
		numbers = append(numbers, text)
	}
	return strings.Join(numbers, " ")
}

// step is a change, and the expected set after it.
type step struct {
	what         string
	after        time.Duration // since the step before
	do           func(s *set, now time.Time)
	want         string // see peers
	massRetained bool
	deadline     time.Duration // result of Next, since began; 0: none
}

func apply(replaced bool, changes ...Change) func(*set, time.Time) {
	return func(s *set, now time.Time) { s.Apply(changes, replaced, now) }
}

func run(t *testing.T, s *set, steps []step) {
	t.Helper()
	now := began
	for _, st := range steps {
		now = now.Add(st.after)
		st.do(s, now)
		if got := peers(s); got != st.want || s.MassRetained() != st.massRetained {
			t.Errorf("%s: %s, in force %t; want %s, %t", st.what, got, s.MassRetained(), st.want, st.massRetained)
		}
		if next := s.Next(); next.IsZero() != (st.deadline == 0) || !next.IsZero() && next.Sub(began) != st.deadline {
			t.Errorf("%s: next %v, want %v after the start", st.what, next.Sub(began), st.deadline)
		}
	}
}

func nothing(s *set, now time.Time) { s.Expire(now) }

// Withdrawn peers within the limit are removed at once. If more follow, all of them are
// retained, including the first, until they expire. A peer that comes back is no
// longer retained.
func TestMassWithdrawal(t *testing.T) {
	run(t, filled(6), []step{
		{what: "three of six", do: apply(false, gone(1, 2, 3)...), want: "4 5 6", deadline: window},
		{what: "and one more", after: time.Minute, do: apply(false, gone(4)...), want: "(1) (2) (3) (4) 5 6", massRetained: true, deadline: window},
		{what: "one is back", after: time.Minute, do: apply(false, has(lease(2))), want: "(1) 2 (3) (4) 5 6", massRetained: true, deadline: window},
		{what: "two are back: the others stay", do: apply(false, has(lease(1))), want: "1 2 (3) (4) 5 6", massRetained: true, deadline: window},
		{what: "the time of the first is over", after: 3 * time.Minute, do: nothing, want: "1 2 (4) 5 6", massRetained: true, deadline: window + time.Minute},
		{what: "that of the last is over", after: time.Minute, do: nothing, want: "1 2 5 6"},
		{what: "the count began at zero again", do: apply(false, gone(1, 2, 5)...), want: "6", deadline: 2*window + time.Minute},
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

// A peer is not retained, or no longer, if another lease claims its subnet or its
// address.
func TestDisplaced(t *testing.T) {
	wide, part := lease(9), lease(10)
	wide.V4.Subnet = netip.MustParsePrefix("10.1.4.0/23") // around those of 4 and 5
	part.V4.Subnet = netip.MustParsePrefix("10.1.4.128/25")
	younger := leaseAt(14, 4)
	younger.Since = 2
	run(t, filled(6), []step{
		{what: "all but one", do: apply(false, gone(1, 2, 3, 4, 5)...), want: "(1) (2) (3) (4) (5) 6", massRetained: true, deadline: window},
		{what: "the address of one", do: apply(false, has(leaseAt(8, 1))), want: "(2) (3) (4) (5) 6 8", massRetained: true, deadline: window},
		{what: "around the subnets of two", do: apply(false, has(wide)), want: "(2) (3) 9 (4) (5) 6 8", massRetained: true, deadline: window},
		{what: "a part of the subnet of one", do: apply(false, has(part)), want: "(2) (3) 9 10 (5) 6 8", massRetained: true, deadline: window},
		{what: "an unreadable entry with its name", do: apply(false, Change{Name: name(2), Entry: Entry{Reject: "garbage"}}), want: "(2) (3) 9 10 (5) 6 8", massRetained: true, deadline: window},
		{what: "and it is deleted", do: apply(false, gone(2)...), want: "(2) (3) 9 10 (5) 6 8", massRetained: true, deadline: window},
	})
	run(t, filled(6), []step{ // nodes that come under other names do not count
		{what: "renamed", do: apply(false, append(gone(1, 2, 3), has(leaseAt(11, 1)), has(leaseAt(12, 2)))...), want: "4 5 6 11 12", deadline: window},
		{what: "the new name first", do: apply(false, has(younger)), want: "4 5 6 11 12 14", deadline: window},
		{what: "then the old name is deleted", do: apply(false, gone(4)...), want: "5 6 11 12 14", deadline: window},
		{what: "two more", do: apply(false, gone(5, 6)...), want: "11 12 14", deadline: window},
		{what: "which exceeds the limit", do: apply(false, gone(11)...), want: "(3) (5) (6) (11) 12 14", massRetained: true, deadline: window},
	})
}

func TestAccepted(t *testing.T) {
	accept := func(s *set, _ time.Time) { s.Accept() }
	run(t, filled(12), []step{
		{what: "most", do: apply(false, gone(span(1, 8)...)...), want: "(1) (2) (3) (4) (5) (6) (7) (8) 9 10 11 12", massRetained: true, deadline: window},
		{what: "accepted", do: accept, want: "9 10 11 12"},
		{what: "the count began at zero again", do: apply(false, gone(9, 10, 11)...), want: "12", deadline: window},
		{what: "accepted within the limit", do: accept, want: "12"},
	})
}

// Peers that a replaced store lacks are retained for a day, whatever their number and
// also after further lists. A peer that is deleted in the new store counts as usual.
func TestReplacedStore(t *testing.T) {
	whole := func(replaced bool, changes ...Change) func(*set, time.Time) {
		return func(s *set, now time.Time) { s.ApplyAll(changes, replaced, now) }
	}
	run(t, filled(4), []step{
		{what: "emptied", do: whole(true), want: "(1) (2) (3) (4)", deadline: replacedFor},
		{what: "one is back", do: apply(false, has(lease(3))), want: "(1) (2) 3 (4)", deadline: replacedFor},
		{what: "another list", do: whole(false, has(lease(3))), want: "(1) (2) 3 (4)", deadline: replacedFor},
		{what: "a second before they expire", after: replacedFor - time.Second, do: apply(false, has(leaseAt(8, 4))), want: "(1) (2) 3 8", deadline: replacedFor},
		{what: "one is deleted", do: apply(false, gone(3)...), want: "(1) (2) 8", deadline: replacedFor},
		{what: "one that it lacked is deleted", do: apply(false, gone(1)...), want: "(2) 8", deadline: replacedFor},
		{what: "one has no lease yet", do: apply(false, Change{Name: name(2), Entry: Entry{Windows: true}}), want: "(2) 8", deadline: replacedFor},
		{what: "a day later", after: time.Second, do: nothing, want: "8", deadline: replacedFor - time.Second + window},
	})
	s := newSet(name(0), 0, false)
	run(t, s, []step{
		{what: "without retention", do: whole(false, has(lease(1)), has(lease(2)), has(lease(3)), has(lease(4))), want: "1 2 3 4"},
		{what: "deleted ones are removed", do: apply(false, gone(1, 2, 3, 4)...), want: ""},
		{what: "new ones", do: apply(false, has(lease(5))), want: "5"},
		{what: "but the store is replaced", do: whole(true), want: "(5)", deadline: replacedFor},
	})
}

func TestOwn(t *testing.T) {
	own := func(i int) func(*set, time.Time) { return func(s *set, _ time.Time) { s.SetOwn(name(i)) } }
	run(t, filled(5), []step{
		{what: "our own is deleted", do: apply(false, gone(0)...), want: "1 2 3 4 5"},
		{what: "our name changes", do: own(2), want: "1 3 4 5"},
		{what: "the old name is in the store", do: apply(false, has(lease(0))), want: "0 1 3 4 5"},
		{what: "all are deleted", do: apply(false, gone(span(0, 5)...)...), want: "(0) (1) (3) (4) (5)", massRetained: true, deadline: window},
		{what: "our name is that of a retained one", do: own(4), want: "(0) (1) (3) (5)", massRetained: true, deadline: window},
	})
}

// An unchanged lease keeps its pointer, also if it was retained meanwhile.
func TestPointersAreKept(t *testing.T) {
	s := filled(100)
	before := s.Subnets()
	again := func() (list []Change) {
		for _, i := range span(1, 100) {
			list = append(list, has(lease(i)))
		}
		return list
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
		t.Error("a lease that was created again was not replaced by the new one")
	}
}

// Validating all leases again makes no list of their names.
func TestJudgingTakesNoMemory(t *testing.T) {
	s := filled(1000)
	s.SetJudge(subnet.Trusting{})
	if allocs := testing.AllocsPerRun(10, func() { s.unjudged = nil; s.judgeRest() }); allocs > 10 {
		t.Errorf("%v allocations for 1,000 leases", allocs)
	}
}

func TestWindows(t *testing.T) {
	s := newSet(name(0), window, false)
	windows := func(i int) Change { return Change{Name: name(i), Entry: Entry{Lease: lease(i), Windows: true}} }
	check := func(what, want string) {
		t.Helper()
		if got := s.Subnets().Windows; got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	s.ApplyAll([]Change{windows(0), windows(3), windows(2), has(lease(1)), has(lease(4)), {Name: name(5), Entry: Entry{Windows: true}}}, false, began)
	check("at first", name(2))
	s.Apply(gone(1, 2, 3, 4), false, began)
	check("retained", name(2))
	s.Expire(began.Add(window))
	check("without a lease", name(5))
	s.Apply(gone(5), false, began.Add(window))
	check("none", "")
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

// Half of the peers are deleted at once, and come back one after the other.
func BenchmarkHalfOf10000(b *testing.B) {
	for b.Loop() {
		s := filled(10_000)
		s.Apply(gone(span(1, 5000)...), false, began)
		for _, i := range span(1, 5000) {
			s.Apply([]Change{has(lease(i))}, false, began)
		}
	}
}
