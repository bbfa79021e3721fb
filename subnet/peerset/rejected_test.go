package peerset

import (
	"net/netip"
	"testing"
	"time"

	"flannel/subnet"
)

// backed returns lease i with another backend: "junk" is one that testJudge refuses.
func backed(i int, backend string) *subnet.Lease {
	l := lease(i)
	l.Backend = backend
	return l
}

// sized returns lease i with a subnet of another length, and a younger age.
func sized(i, number, bits int) *subnet.Lease {
	l := leaseAt(i, i)
	l.Name, l.Since = name(100+number), 2
	l.V4.PublicIP = netip.AddrFrom4([4]byte{192, 168, 200, byte(number)})
	l.V4.Subnet = netip.PrefixFrom(l.V4.Subnet.Addr(), bits).Masked()
	return l
}

// A lease that is rejected decides nothing: it neither claims what a withdrawn peer
// had, nor counts as a peer, whether it is present or withdrawn. Nor does one that
// was there before the peer claim its address.
func TestRejectedLeasesDecideNothing(t *testing.T) {
	twelve := func(junk ...Change) *set {
		s := filled(12)
		s.SetJudge(testJudge{})
		s.Apply(junk, false, began)
		return s
	}
	many := func(make func(i int) *subnet.Lease) (all []Change) {
		for i := range 60 {
			all = append(all, has(make(i)))
		}
		return all
	}
	everything := backed(50, "junk")
	everything.V4.Subnet = netip.MustParsePrefix("0.0.0.0/1")
	address := leaseAt(50, 3)
	address.Backend = "junk"
	older, younger := leaseAt(50, 3), leaseAt(50, 3)
	older.Since, younger.Since = 0, 2
	for _, c := range []struct {
		name     string
		junk     []Change
		gone     []Change
		retained int
	}{
		{"none", nil, gone(span(1, 12)...), 12},
		{"around all subnets", []Change{has(everything)}, gone(span(1, 12)...), 12},
		{"with the address of one", []Change{has(address)}, gone(span(1, 12)...), 12},
		{"with the address of one, afterwards", nil, append(gone(span(1, 12)...), has(address)), 12},
		{"with the address of one, valid and older", []Change{has(older)}, gone(span(1, 12)...), 12},
		{"with the address of one, valid and younger", []Change{has(younger)}, gone(span(1, 12)...), 11},
		{"many", many(func(i int) *subnet.Lease { return backed(100+i, "junk") }), gone(span(1, 12)...), 12},
		{"many without backend data", many(func(i int) *subnet.Lease { return backed(100+i, "") }), gone(span(1, 12)...), 12},
		{"around the subnets, and else valid", []Change{has(sized(0, 1, 20))}, gone(span(1, 12)...), 12},
		{"many parts of the subnets", many(func(i int) *subnet.Lease { return sized(1+i%12, i, 27) }), gone(span(1, 12)...), 12},
		{"under the names of all", nil, many(func(i int) *subnet.Lease { return backed(1+i%12, "junk") }), 12},
		{"many that are deleted", many(func(i int) *subnet.Lease { return backed(100+i, "junk") }), gone(append(span(100, 159), 1)...), 0},
		{"many losers that are deleted", many(func(i int) *subnet.Lease { return sized(1+i%12, i, 27) }), gone(append(span(100, 159), 1)...), 0},
	} {
		s := twelve(c.junk...)
		s.Apply(c.gone, false, began)
		set := s.Subnets()
		if len(set.Retained) != c.retained {
			t.Errorf("%s: %d are retained, want %d", c.name, len(set.Retained), c.retained)
		}
		names := map[string]bool{}
		for _, l := range set.Leases {
			if names[l.Name] {
				t.Errorf("%s: %s is twice in the set", c.name, l.Name)
			}
			names[l.Name] = true
		}
	}
}

// A compromised node writes the addresses of all retained peers into its own lease, one after the other, whatever its age:
// it displaces one of them, and another one only when that one's time is over.
func TestOneNameClaimsOneAddress(t *testing.T) {
	for _, age := range []int64{0, 1, 2} {
		s := filled(13)
		rogue := func(address int) Change {
			l := leaseAt(50, address)
			l.Since = age
			return has(l)
		}
		s.Apply([]Change{rogue(50)}, false, began)
		s.Apply(gone(span(1, 12)...), false, began.Add(time.Second))
		retained := func(what string, at time.Duration, want int, changes ...Change) {
			t.Helper()
			s.Apply(changes, false, began.Add(at))
			if got := len(s.Subnets().Retained); got != want {
				t.Errorf("age %d, %s: %d are retained, want %d", age, what, got, want)
			}
		}
		retained("before", 2*time.Second, 12)
		for i := range 12 {
			retained("one after the other", 3*time.Second, 11, rogue(1+i))
		}
		retained("it leaves", 4*time.Second, 12, gone(50)...) // and is retained itself
		retained("it is back", 4*time.Second, 11, rogue(3))
		retained("another node", 5*time.Second, 10, has(leaseAt(60, 4)))
		retained("another node's subnet", 6*time.Second, 9, Change{Name: name(50), Entry: Entry{Lease: withName(leaseAt(5, 50), name(50))}})
		retained("the time is over", window+time.Second, 0, has(lease(14)), has(lease(15)), has(lease(16)))
		retained("most leave again", window+time.Second, 4, gone(13, 14, 15, 16)...)
		retained("it claims one again", window+time.Second, 3, rogue(14))
	}
}

// A lease with a subnet around those of retained peers displaces them if the cluster assigns the subnets, and it would be used
// without them.
func TestLeaseAroundRetainedPeers(t *testing.T) {
	for _, c := range []struct {
		assigned bool
		gone     []int
		retained int
	}{{false, span(1, 12), 12}, {true, span(1, 12), 10}, {true, append(span(4, 12), 2), 10}} { // 10.1.2.0/23 is around 2 and 3
		s := filled(12)
		s.assigned = c.assigned
		s.SetJudge(testJudge{})
		s.Apply(gone(c.gone...), false, began)
		s.Apply([]Change{has(sized(2, 1, 23))}, false, began)
		if got := len(s.Subnets().Retained); got != c.retained {
			t.Errorf("%+v: %d are retained", c, got)
		}
	}
}

func withName(l *subnet.Lease, name string) *subnet.Lease {
	l.Name = name
	return l
}

// Nodes that adopt another configuration are still there: none of them is withdrawn, and what is shown of each is its
// latest lease. Such a lease claims nothing, and ends the retention of its own node's former lease only.
func TestOtherConfiguration(t *testing.T) {
	others := func(numbers ...int) (all []Change) {
		for _, i := range numbers {
			all = append(all, has(backed(i, "other")))
		}
		return all
	}
	judge := func(j subnet.Judge) func(*set, time.Time) { return func(s *set, _ time.Time) { s.SetJudge(j) } }
	s := filled(10)
	s.SetJudge(testJudge{})
	claims := leaseAt(11, 2) // the address of one, with another configuration
	claims.Backend, claims.V4.Subnet = "other", lease(9).V4.Subnet
	run(t, s, []step{
		{what: "most adopt it", do: apply(false, others(span(1, 6)...)...), want: "1 2 3 4 5 6 7 8 9 10"},
		{what: "one by one", do: apply(false, others(7)...), want: "1 2 3 4 5 6 7 8 9 10"},
		{what: "one leaves", do: apply(false, gone(1)...), want: "2 3 4 5 6 7 8 9 10"},
		{what: "we adopt it", do: judge(subnet.Trusting{}), want: "2 3 4 5 6 7 8 9 10"},
		{what: "and go back", do: judge(testJudge{}), want: "2 3 4 5 6 7 8 9 10"},
		{what: "they go back", do: apply(false, has(lease(2)), has(lease(3)), has(lease(4)), has(lease(5)), has(lease(6)), has(lease(7))), want: "2 3 4 5 6 7 8 9 10"},
		{what: "most are deleted", do: apply(false, gone(2, 3, 4, 5, 6)...), want: "(2) (3) (4) (5) (6) 7 8 9 10", massRetained: true, deadline: window},
		{what: "two are back with it", do: apply(false, others(2, 3)...), want: "2 3 (4) (5) (6) 7 8 9 10", massRetained: true, deadline: window},
		{what: "claims of another", do: apply(false, append(gone(9), has(claims))...), want: "2 3 (4) (5) (6) 7 8 (9) 11 10", massRetained: true, deadline: window},
	})
	for _, l := range s.Subnets().Leases[:2] {
		if l.Backend != "other" {
			t.Errorf("%s is shown with %q", l.Name, l.Backend)
		}
	}
}

// countingJudge counts how often the conflicts of all leases are resolved, and the checks of leases.
type countingJudge struct {
	testJudge
	resolved, checked int
}

func (j *countingJudge) Losers(leases []*subnet.Lease) map[*subnet.Lease]bool {
	j.resolved++
	return j.testJudge.Losers(leases)
}

func (j *countingJudge) Check(l *subnet.Lease) error {
	j.checked++
	return j.testJudge.Check(l)
}

// A change validates the leases under its own name, and not all others. These are validated when several peers are withdrawn.
func TestChangeValidatesNoOthers(t *testing.T) {
	s, judge := filled(100), &countingJudge{}
	s.SetJudge(judge)
	s.Apply([]Change{has(leaseAt(10, 200))}, false, began)
	if judge.checked != 2 {
		t.Errorf("a change validated %d leases, and not the former and the new one", judge.checked)
	}
	if s.Apply(gone(8), false, began); judge.checked != 3 {
		t.Errorf("a change and a withdrawal validated %d leases, not those of the two", judge.checked)
	}
	if s.Apply(gone(11, 12, 13), false, began); judge.checked < 100 || s.presentCount() != 96 {
		t.Errorf("four withdrawals: %d leases validated, %d peers present", judge.checked, s.presentCount())
	}
}

// To resolve the conflicts of all leases takes time, so it is not done for a change that withdraws nobody.
func TestConflictsAreResolvedForWithdrawals(t *testing.T) {
	s, judge := filled(100), &countingJudge{}
	s.SetJudge(judge)
	s.Apply(gone(1, 2, 3, 4, 5), false, began)
	for i, c := range map[string]struct {
		changes []Change
		want    int
	}{"replaced": {[]Change{has(leaseAt(10, 200))}, 0}, "new": {[]Change{has(lease(201))}, 0}, "with another configuration": {[]Change{has(backed(11, "other"))}, 0},
		"withdrawn": {gone(12), 1}, "back": {[]Change{has(lease(5))}, 0}} {
		judge.resolved = 0
		if s.Apply(c.changes, false, began); judge.resolved > c.want {
			t.Errorf("%s: resolved %d times, want %d", i, judge.resolved, c.want)
		}
	}
	judge.resolved = 0
	for _, i := range span(20, 25) {
		s.Apply(gone(i), false, began)
	}
	if judge.resolved > 1 {
		t.Errorf("one after the other is withdrawn: resolved %d times, want once", judge.resolved)
	}
	if set := s.Subnets(); len(set.Retained) > 0 {
		t.Errorf("%d are retained", len(set.Retained))
	}
}

// What other rules accept is a peer again, and is withdrawn by its deletion only.
func TestJudgeChanges(t *testing.T) {
	judge := func(j subnet.Judge) func(*set, time.Time) { return func(s *set, _ time.Time) { s.SetJudge(j) } }
	s := newSet(name(0), window, false)
	list := []Change{has(lease(1)), has(lease(2))}
	for _, i := range span(3, 6) {
		list = append(list, has(backed(i, "junk")))
	}
	run(t, s, []step{
		{what: "two valid ones", do: apply(false, list...), want: "1 2 3 4 5 6"},
		{what: "four are refused", do: judge(testJudge{}), want: "1 2 3 4 5 6"},
		{what: "and deleted", do: apply(false, gone(3, 4, 5, 6)...), want: "1 2"},
		{what: "again", do: apply(false, list...), want: "1 2 3 4 5 6"},
		{what: "they are valid", do: judge(subnet.Trusting{}), want: "1 2 3 4 5 6"},
		{what: "and deleted", do: apply(false, gone(3, 4, 5, 6)...), want: "1 2 (3) (4) (5) (6)", massRetained: true, deadline: window},
	})
}

// Our own lease is another node's only if a valid lease has its subnet. One that
// contains it, or has our address, would lose against it.
func TestClaimed(t *testing.T) {
	s := newSet(name(0), window, false)
	s.SetJudge(testJudge{})
	s.ApplyAll([]Change{has(sized(4, 1, 20)), has(backed(5, "junk")), has(leaseAt(6, 6)), has(sized(7, 2, 25)), has(leaseAt(8, 9)), has(backed(10, "other"))}, false, began)
	for i, want := range map[int]bool{3: false, 4: false, 5: false, 6: true, 7: false, 8: true, 9: false, 10: true} {
		if got := s.Claimed(lease(i)); got != want {
			t.Errorf("%v is claimed: %t, want %t", lease(i), got, want)
		}
	}
}
