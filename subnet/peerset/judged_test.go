package peerset

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"flannel/subnet"
)

// Leases that are validated when it matters lead to the same set as leases that are all validated at once, whatever the judge,
// the own name and the store become meanwhile.
func TestWhenLeasesAreValidated(t *testing.T) {
	for seed := range uint64(3000) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		lazy, eager, now := newSet(name(0), window, false), newSet(name(0), window, false), began
		change := func() Change {
			i := rnd.IntN(12)
			l := lease(i)
			switch rnd.IntN(6) {
			case 0, 1:
				return Change{Name: name(i), Deleted: true}
			case 2:
				l.Backend = []string{"junk", "other", ""}[rnd.IntN(3)]
			case 3:
				l = leaseAt(i, rnd.IntN(12))
			}
			l.Since = rnd.Int64N(3)
			return has(l)
		}
		for step := range 12 {
			var changes []Change
			for range 1 + rnd.IntN(8) {
				changes = append(changes, change())
			}
			what, judge, own := rnd.IntN(8), subnet.Judge(testJudge{}), name(rnd.IntN(4))
			if rnd.IntN(2) == 0 {
				judge = subnet.Trusting{}
			}
			do := func(s *set) string {
				changed := false
				switch what {
				case 0:
					changed = s.SetJudge(judge)
				case 1:
					changed = s.SetOwn(own)
				case 2:
					changed = s.Expire(now)
				default:
					changed = s.Apply(changes, false, now)
				}
				return fmt.Sprint(changed, s.next)
			}
			now = now.Add(time.Duration(rnd.IntN(3)) * window / 3)
			a, b := do(lazy), do(eager)
			eager.judgeRest()
			if a != b || !reflect.DeepEqual(lazy.Subnets(), eager.Subnets()) {
				t.Fatalf("seed %d, step %d: %s\n%+v\nwant %s\n%+v", seed, step, a, lazy.Subnets(), b, eager.Subnets())
			}
		}
		if a, b := lazy.MostWithdrawn(), eager.MostWithdrawn(); a != b || lazy.presentCount() != eager.presentCount() {
			t.Fatalf("seed %d: most are withdrawn: %t, want %t; %d present, want %d", seed, a, b, lazy.presentCount(), eager.presentCount())
		}
	}
}
