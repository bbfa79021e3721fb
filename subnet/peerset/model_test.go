package peerset

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"flannel/pkg/changes"
	"flannel/subnet"
)

// model is a simple implementation of Set, which visits all peers each time.
type model struct {
	own   string
	store map[string]Entry
	gone  []gonePeer
}

// gonePeer is a peer whose lease the store no longer has.
type gonePeer struct {
	lease    *subnet.Lease
	until    time.Time
	mass     bool // it counts for a mass withdrawal; false: a replaced store lacks it
	retained bool
}

func (m *model) apply(changes []Change, replaced bool, now time.Time) {
	m.drop(func(l gonePeer) bool { return !now.Before(l.until) })
	for _, c := range changes {
		old := m.store[c.Name]
		m.store[c.Name] = c.Entry
		switch {
		case c.Name == m.own:
		case c.Lease != nil:
			m.drop(func(l gonePeer) bool { return l.lease.Name == c.Name })
		case (c.Deleted || c.Reject != "") && m.lacked(c.Name) >= 0:
			l := &m.gone[m.lacked(c.Name)]
			l.until, l.mass, l.retained = now.Add(window), true, false
		case old.Lease != nil && replaced && c.Reject == "":
			m.gone = append(m.gone, gonePeer{old.Lease, now.Add(ReplacedFor), false, true})
		case old.Lease != nil:
			m.gone = append(m.gone, gonePeer{old.Lease, now.Add(window), true, false})
		}
	}
	m.drop(func(l gonePeer) bool {
		return slices.ContainsFunc(m.present(), func(p *subnet.Lease) bool { return p.Displaces(l.lease) })
	})
	count := 0
	for _, l := range m.gone {
		if l.mass {
			count++
		}
	}
	if count > 3 && float64(count) > 0.2*float64(count+len(m.present())) {
		for i := range m.gone {
			m.gone[i].retained = true
		}
	}
}

func (m *model) drop(which func(gonePeer) bool) { m.gone = slices.DeleteFunc(m.gone, which) }

// lacked returns the index in gone of a peer that a replaced store lacks, -1 if there
// is none.
func (m *model) lacked(name string) int {
	return slices.IndexFunc(m.gone, func(l gonePeer) bool { return l.lease.Name == name && !l.mass })
}

func (m *model) present() (leases []*subnet.Lease) {
	for name, e := range m.store {
		if e.Lease != nil && name != m.own {
			leases = append(leases, e.Lease)
		}
	}
	return leases
}

func (m *model) String() string {
	var lines []string
	for _, l := range m.present() {
		lines = append(lines, fmt.Sprint(l.Name, " ", l))
	}
	for name, e := range m.store {
		if e.Reject != "" && name != m.own {
			lines = append(lines, name+" "+e.Reject)
		}
	}
	for _, l := range m.gone {
		if l.retained {
			lines = append(lines, fmt.Sprint(l.lease.Name, " ", l.lease, " until ", l.until, " ", l.mass))
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

// After any sequence of changes, the Set is equal to the model.
func TestRandomChanges(t *testing.T) {
	for seed := range uint64(100) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		nodes := 3 + rnd.IntN(30)
		s, m := New(name(0), window), &model{own: name(0), store: map[string]Entry{}}
		now := began
		var set subnet.Set
		random := func() Change {
			i := rnd.IntN(nodes)
			switch rnd.IntN(8) {
			case 0, 1, 2:
				return Change{Name: name(i), Deleted: rnd.IntN(2) == 0}
			case 3:
				return Change{Name: name(i), Entry: Entry{Reject: "garbage"}}
			case 4: // claims the subnet or the address of another
				l := leaseAt(rnd.IntN(nodes), rnd.IntN(nodes))
				l.Name = name(i)
				return has(l)
			}
			return has(lease(i))
		}
		for step := range 40 {
			now = now.Add(time.Duration(rnd.Int64N(int64(2 * time.Minute))))
			var updates []Change
			switch rnd.IntN(12) {
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
			case 2:
				s.Expire(now)
				m.drop(func(l gonePeer) bool { return !now.Before(l.until) })
			default:
				for range 1 + rnd.IntN(1+rnd.IntN(100)) {
					updates = append(updates, random())
				}
				s.Apply(updates, false, now)
				m.apply(updates, false, now)
			}
			before := set.Leases
			set = s.Subnets()
			if !slices.Equal(changes.Apply(before, set.Changes, subnet.Compare), set.Leases) {
				t.Fatalf("seed %d, step %d: the changes do not lead to the leases", seed, step)
			}
			if got, want := textOf(set), m.String(); got != want {
				t.Fatalf("seed %d, step %d, after %d updates: the set is\n%s\nwant\n%s", seed, step, len(updates), got, want)
			}
			if !slices.IsSortedFunc(set.Leases, subnet.Compare) || !slices.IsSortedFunc(set.Retained, compareRetained) {
				t.Fatalf("seed %d, step %d: out of order", seed, step)
			}
		}
	}
}
