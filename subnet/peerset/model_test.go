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

// model does what Set does by looking at everything, every time.
type model struct {
	own   string
	store map[string]Entry
	left  []left
}

// left is a lease that the store no longer has.
type left struct {
	lease    *subnet.Lease
	until    time.Time
	mass     bool // not of a replaced store
	retained bool
}

func (m *model) apply(changes []Change, replaced bool, now time.Time) {
	m.drop(func(l left) bool { return !now.Before(l.until) })
	for _, c := range changes {
		old := m.store[c.Name]
		m.store[c.Name] = c.Entry
		switch {
		case c.Name == m.own:
		case c.Lease != nil:
			m.drop(func(l left) bool { return l.lease.Name == c.Name })
		case (c.Deleted || c.Reject != "") && m.lacked(c.Name) >= 0:
			l := &m.left[m.lacked(c.Name)]
			l.until, l.mass, l.retained = now.Add(window), true, false
		case old.Lease != nil && replaced && c.Reject == "":
			m.left = append(m.left, left{old.Lease, now.Add(ReplacedFor), false, true})
		case old.Lease != nil:
			m.left = append(m.left, left{old.Lease, now.Add(window), true, false})
		}
	}
	m.drop(func(l left) bool {
		return slices.ContainsFunc(m.present(), func(p *subnet.Lease) bool { return p.Displaces(l.lease) })
	})
	count := 0
	for _, l := range m.left {
		if l.mass {
			count++
		}
	}
	if count > 3 && float64(count) > 0.2*float64(count+len(m.present())) {
		for i := range m.left {
			m.left[i].retained = true
		}
	}
}

func (m *model) drop(which func(left) bool) { m.left = slices.DeleteFunc(m.left, which) }

// lacked is where in left a peer is that a replaced store lacks; -1: nowhere.
func (m *model) lacked(name string) int {
	return slices.IndexFunc(m.left, func(l left) bool { return l.lease.Name == name && !l.mass })
}

func (m *model) present() (all []*subnet.Lease) {
	for name, e := range m.store {
		if e.Lease != nil && name != m.own {
			all = append(all, e.Lease)
		}
	}
	return all
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
	for _, l := range m.left {
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

// Whatever happens, the set is that of the model.
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
			case 4: // in the way of another
				l := leaseAt(rnd.IntN(nodes), rnd.IntN(nodes))
				l.Name = name(i)
				return has(l)
			}
			return has(lease(i))
		}
		for step := range 40 {
			now = now.Add(time.Duration(rnd.Int64N(int64(2 * time.Minute))))
			var news []Change
			switch rnd.IntN(12) {
			case 0: // a list, now and then of a replaced store
				for i := range nodes {
					if c := (has(lease(i))); rnd.IntN(4) > 0 {
						news = append(news, c)
					}
				}
				replaced := rnd.IntN(2) == 0
				s.ApplyAll(news, replaced, now)
				for name := range m.store {
					if !slices.ContainsFunc(news, func(c Change) bool { return c.Name == name }) {
						news = append(news, Change{Name: name})
					}
				}
				m.apply(news, replaced, now)
			case 1:
				s.Accept()
				m.left = nil
			case 2:
				s.Expire(now)
				m.drop(func(l left) bool { return !now.Before(l.until) })
			default:
				for range 1 + rnd.IntN(1+rnd.IntN(100)) {
					news = append(news, random())
				}
				s.Apply(news, false, now)
				m.apply(news, false, now)
			}
			before := set.Leases
			set = s.Subnets()
			if !slices.Equal(changes.Apply(before, set.Changes, subnet.Compare), set.Leases) {
				t.Fatalf("seed %d, step %d: the changes do not lead to the leases", seed, step)
			}
			if got, want := textOf(set), m.String(); got != want {
				t.Fatalf("seed %d, step %d, after %d changes: the set is\n%s\nwant\n%s", seed, step, len(news), got, want)
			}
			if !slices.IsSortedFunc(set.Leases, subnet.Compare) || !slices.IsSortedFunc(set.Retained, compareRetained) {
				t.Fatalf("seed %d, step %d: out of order", seed, step)
			}
		}
	}
}
