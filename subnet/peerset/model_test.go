package peerset

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"flannel/pkg/reconcile"
	"flannel/subnet"
)

// testJudge refuses the backend "junk". Of two leases that overlap, the one with a /24 is used, or else the older one.
type testJudge struct {
	other string // the backend of another configuration; "": "other"
}

func (j testJudge) Check(l *subnet.Lease) error {
	switch l.Backend {
	case "":
		return subnet.ErrPending
	case "junk":
		return errors.New("junk")
	case cmp.Or(j.other, "other"):
		return fmt.Errorf("backend %s; %w", l.Backend, subnet.ErrOtherConfig)
	}
	return nil
}

func (j testJudge) Losers(leases []*subnet.Lease) map[*subnet.Lease]bool {
	unusual := func(l *subnet.Lease) int { return min(1, max(l.V4.Subnet.Bits()-24, 24-l.V4.Subnet.Bits())) }
	sorted := slices.SortedFunc(slices.Values(leases), func(a, b *subnet.Lease) int {
		return cmp.Or(cmp.Compare(unusual(a), unusual(b)), cmp.Compare(a.Since, b.Since), subnet.Compare(a, b))
	})
	losers := map[*subnet.Lease]bool{}
	var used []*subnet.Lease
	for _, l := range sorted {
		switch err := j.Check(l); {
		case errors.Is(err, subnet.ErrPending): // it is not used, but not refused either
		case err != nil || slices.ContainsFunc(used, func(o *subnet.Lease) bool { return o.V4.Subnet.Overlaps(l.V4.Subnet) }):
			losers[l] = true
		default:
			used = append(used, l)
		}
	}
	return losers
}

func (j testJudge) Elsewhere() subnet.Judge { return j }

// model is a simple implementation of set, which visits all peers each time.
type model struct {
	own   string
	judge subnet.Judge
	store map[string]Entry
	gone  []gonePeer

	claimed  map[string]time.Time // as in set
	assigned bool
}

// gonePeer is a peer whose lease the store no longer has.
type gonePeer struct {
	lease    *subnet.Lease
	until    time.Time
	mass     bool // it counts for a mass withdrawal; false: a replaced store lacks it
	retained bool
}

func (m *model) usable(l *subnet.Lease) bool { return l != nil && m.judge.Check(l) == nil }

func (m *model) other(l *subnet.Lease) bool {
	return l != nil && errors.Is(m.judge.Check(l), subnet.ErrOtherConfig)
}

// refused reports whether a lease is neither usable nor pending.
func (m *model) refused(l *subnet.Lease) bool {
	return l != nil && !m.usable(l) && !errors.Is(m.judge.Check(l), subnet.ErrPending)
}

// setJudge changes the judge: of the peers that are gone, it drops those that the store has after all.
func (m *model) setJudge(j subnet.Judge) {
	m.judge = j
	m.drop(func(g gonePeer) bool {
		l := m.store[g.lease.Name].Lease
		return m.usable(l) || m.other(l)
	})
}

// setOwn changes the name of this node.
func (m *model) setOwn(own string) {
	if own != m.own {
		m.drop(func(g gonePeer) bool { return g.lease.Name == own })
		m.own = own
	}
}

func (m *model) apply(changes []Change, replaced bool, now time.Time) {
	m.expire(now)
	added, fresh, shrunk := map[*subnet.Lease]bool{}, map[*subnet.Lease]bool{}, false
	for _, c := range changes {
		old := m.store[c.Name]
		if i := slices.IndexFunc(m.gone, func(l gonePeer) bool { return l.lease.Name == c.Name }); i >= 0 && c.Lease != nil && c.Lease.Equal(m.gone[i].lease) && c.Lease.Since == m.gone[i].lease.Since {
			c.Lease = m.gone[i].lease
		}
		if c.Lease != nil && old.Lease != nil && c.Lease.Equal(old.Lease) && c.Lease.Since == old.Lease.Since {
			c.Lease = old.Lease
		}
		if m.store[c.Name] = c.Entry; c.Name == m.own {
			continue
		}
		invalid := c.Reject != "" || m.refused(c.Lease) && !m.other(c.Lease)
		switch {
		case m.usable(c.Lease):
			m.drop(func(l gonePeer) bool { return l.lease.Name == c.Name })
			if c.Lease != old.Lease {
				added[c.Lease] = true
			}
		case m.other(c.Lease):
			m.drop(func(l gonePeer) bool { return l.lease.Name == c.Name })
		case (c.Deleted || invalid) && m.lacked(c.Name) >= 0:
			l := &m.gone[m.lacked(c.Name)]
			l.until, l.mass, l.retained = now.Add(window), true, false
			fresh[l.lease], shrunk = true, true
		case m.usable(old.Lease) && replaced && !invalid:
			m.gone = append(m.gone, gonePeer{old.Lease, now.Add(replacedFor), false, true})
			fresh[old.Lease], shrunk = true, true
		case m.usable(old.Lease):
			m.gone = append(m.gone, gonePeer{old.Lease, now.Add(window), true, false})
			fresh[old.Lease], shrunk = true, true
		}
	}
	m.displace(added, fresh)
	if shrunk {
		m.retainMass()
	}
}

// displace drops the gone peers that a used lease claims.
func (m *model) displace(added, fresh map[*subnet.Lease]bool) {
	before := maps.Clone(m.claimed)
	claimsSubnet := func(p *subnet.Lease, g gonePeer) bool { return p.Within(g.lease) || m.assigned && g.lease.Within(p) }
	claims := func(p *subnet.Lease, g gonePeer) bool {
		return before[p.Name].IsZero() && p.SameNode(g.lease) && (added[p] || fresh[g.lease] && p.Since > g.lease.Since) || added[p] && claimsSubnet(p, g)
	}
	present := m.present()
	all := slices.Clone(present)
	for _, g := range m.gone {
		if !slices.ContainsFunc(present, func(p *subnet.Lease) bool { return claims(p, g) }) {
			all = append(all, g.lease)
		}
	}
	losers := m.judge.Losers(all)
	m.drop(func(g gonePeer) (displaced bool) {
		for _, p := range present {
			if !losers[p] && claims(p, g) {
				if displaced = true; !claimsSubnet(p, g) && g.until.After(m.claimed[p.Name]) {
					m.claimed[p.Name] = g.until
				}
			}
		}
		return displaced
	})
}

func (m *model) expire(now time.Time) {
	maps.DeleteFunc(m.claimed, func(_ string, until time.Time) bool { return !now.Before(until) })
	m.drop(func(g gonePeer) bool { return !now.Before(g.until) })
}

func (m *model) retainMass() {
	all := m.present()
	for _, g := range m.gone {
		all = append(all, g.lease)
	}
	losers := m.judge.Losers(all)
	count, present := 0, 0
	for _, g := range m.gone {
		if g.mass && !losers[g.lease] {
			count++
		}
	}
	for _, p := range m.present() {
		if !losers[p] {
			present++
		}
	}
	if count > 3 && float64(count) > 0.2*float64(count+present) {
		for i := range m.gone {
			m.gone[i].retained = m.gone[i].retained || !losers[m.gone[i].lease]
		}
	}
}

func (m *model) drop(which func(gonePeer) bool) { m.gone = slices.DeleteFunc(m.gone, which) }

// lacked returns the index in gone of a peer that a replaced store lacks, -1 if there
// is none.
func (m *model) lacked(name string) int {
	return slices.IndexFunc(m.gone, func(l gonePeer) bool { return l.lease.Name == name && !l.mass })
}

// present returns the usable leases that the store has.
func (m *model) present() (leases []*subnet.Lease) {
	for name, e := range m.store {
		if m.usable(e.Lease) && name != m.own {
			leases = append(leases, e.Lease)
		}
	}
	return leases
}

func (m *model) String() string {
	var lines []string
	hidden := map[string]bool{}
	for _, l := range m.gone {
		if l.retained {
			hidden[l.lease.Name] = true
			lines = append(lines, fmt.Sprint(l.lease.Name, " ", l.lease, " until ", l.until, " ", l.mass))
		}
	}
	for name, e := range m.store {
		switch {
		case name == m.own:
		case e.Reject != "":
			lines = append(lines, name+" "+e.Reject)
		case e.Lease != nil && !hidden[name]:
			lines = append(lines, fmt.Sprint(name, " ", e.Lease))
		case m.refused(e.Lease):
			lines = append(lines, fmt.Sprint(name, " ", m.judge.Check(e.Lease)))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func textOf(set subnet.Set) string {
	retained := map[*subnet.Lease]string{}
	for _, r := range set.Retained {
		retained[r.Lease] = fmt.Sprint(" until ", r.Until, " ", r.Cause == subnet.MassWithdrawal)
	}
	var lines []string
	for _, l := range set.Leases {
		lines = append(lines, fmt.Sprint(l.Name, " ", l)+retained[l])
	}
	for _, r := range set.Rejects {
		lines = append(lines, r.Name+" "+r.Reason)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// inconsistency returns what contradicts the comments of the fields of a set; "": nothing does.
func (s *set) inconsistency() string {
	present := 0
	var leases []*subnet.Lease // that take part in conflicts
	for name, e := range s.known.All() {
		if e.usable && name != s.own {
			present++
			leases = append(leases, e.Lease)
		}
		if validated, _ := s.validate(e.Entry); s.unjudged != nil && !s.unjudged[name] && e != validated {
			return fmt.Sprintf("the entry of %s is %+v, want %+v", name, e, validated)
		}
	}
	for _, d := range s.withdrawn.All() {
		leases = append(leases, d.Lease)
	}
	switch {
	case present != s.present:
		return fmt.Sprintf("%d peers are present, want %d", s.present, present)
	case s.resolved && (s.unjudged == nil || len(s.unjudged) > 0):
		return fmt.Sprintf("conflicts are resolved, but not validated are %v", s.unjudged)
	case s.resolved && !maps.Equal(s.losers, s.judge.Losers(leases)):
		return "the result of lost is not up to date"
	}
	return ""
}

// After any sequence of changes, the set is equal to the model.
func TestRandomChanges(t *testing.T) {
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		nodes := 3 + rnd.IntN(30)
		assigned := seed%2 == 0
		s, m := newSet(name(0), window, assigned), &model{own: name(0), assigned: assigned, judge: subnet.Trusting{}, store: map[string]Entry{}, claimed: map[string]time.Time{}}
		now := began
		var set subnet.Set
		random := func() Change {
			i := rnd.IntN(nodes)
			switch rnd.IntN(12) {
			case 0, 1, 2, 8:
				return Change{Name: name(i), Deleted: rnd.IntN(2) == 0}
			case 3:
				return Change{Name: name(i), Entry: Entry{Reject: "garbage"}}
			case 4: // claims the subnet or the address of another
				l := leaseAt(rnd.IntN(nodes), rnd.IntN(nodes))
				l.Name = name(i)
				l.Since = int64(rnd.IntN(3))
				return has(l)
			case 5, 6: // rejected, of another configuration, or without backend data, and claiming something
				l := leaseAt(rnd.IntN(nodes), rnd.IntN(nodes))
				l.Name, l.Backend = name(i), []string{"junk", "", "other"}[rnd.IntN(3)]
				return has(l)
			case 7: // of another size
				l := lease(rnd.IntN(nodes))
				l.Name, l.Since = name(i), int64(rnd.IntN(3))
				l.V4.Subnet = netip.PrefixFrom(l.V4.Subnet.Addr(), 20+rnd.IntN(8)).Masked()
				return has(l)
			}
			return has(lease(i))
		}
		for step := range 40 {
			now = now.Add(time.Duration(rnd.Int64N(int64(2 * time.Minute))))
			var updates []Change
			switch rnd.IntN(14) {
			case 0: // a list, sometimes of a replaced store
				for i := range nodes {
					if c := (has(lease(i))); rnd.IntN(4) > 0 {
						updates = append(updates, c)
					}
				}
				replaced := rnd.IntN(2) == 0
				s.ApplyAll(updates, replaced, now)
				for name := range m.store {
					if !slices.ContainsFunc(updates, func(c Change) bool { return c.Name == name }) {
						updates = append(updates, Change{Name: name})
					}
				}
				m.apply(updates, replaced, now)
			case 1:
				s.Accept()
				m.gone = nil
				clear(m.claimed)
			case 2:
				s.Expire(now)
				m.expire(now)
			case 3:
				j := []subnet.Judge{testJudge{}, testJudge{}, testJudge{other: "vxlan"}, subnet.Trusting{}}[rnd.IntN(4)]
				s.SetJudge(j)
				m.setJudge(j)
			case 4:
				own := name(rnd.IntN(nodes))
				s.SetOwn(own)
				m.setOwn(own)
			default:
				for range 1 + rnd.IntN(1+rnd.IntN(100)) {
					updates = append(updates, random())
				}
				s.Apply(updates, false, now)
				m.apply(updates, false, now)
			}
			before := set.Leases
			set = s.Subnets()
			s.changes = nil // as the Keeper does
			if !slices.Equal(reconcile.ApplyChanges(before, set.Changes, subnet.Compare), set.Leases) {
				t.Fatalf("seed %d, step %d: the changes do not lead to the leases", seed, step)
			}
			if got, want := textOf(set), m.String(); got != want {
				t.Fatalf("seed %d, step %d, after %d updates: the set is\n%s\nwant\n%s", seed, step, len(updates), got, want)
			}
			if !slices.IsSortedFunc(set.Leases, subnet.Compare) || !slices.IsSortedFunc(set.Retained, compareRetained) {
				t.Fatalf("seed %d, step %d: out of order", seed, step)
			}
			if text := s.inconsistency(); text != "" {
				t.Fatalf("seed %d, step %d: %s", seed, step, text)
			}
		}
	}
}
