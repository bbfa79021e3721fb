package daemon

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"flannel/subnet"
)

// judgedManager remembers by which rules it validates leases.
type judgedManager struct {
	movingManager
	judge     subnet.Judge // the last one
	atAcquire subnet.Judge // the one before Acquire
}

func (m *judgedManager) SetJudge(j subnet.Judge) { m.judge = j }

func (m *judgedManager) Acquire(ctx context.Context, c subnet.Config, want subnet.Lease) (subnet.Lease, error) {
	m.atAcquire = m.judge
	return m.movingManager.Acquire(ctx, c, want)
}

// The lease manager validates leases by the rules of this node: of its network before it has a lease, and then by those
// with its lease, its addresses and its configuration, as soon as one of them is another.
func TestLeasesAreJudgedByTheRulesInForce(t *testing.T) {
	d, u, _ := newDaemon(t)
	_, l := startedNode(t, d)
	m := &judgedManager{movingManager: movingManager{subnets: []netip.Prefix{netip.MustParsePrefix("10.5.1.0/24")}}}
	d.Manager = m
	lease := func(s, ip, backend string) *subnet.Lease {
		return &subnet.Lease{Name: "peer", Backend: backend, V4: subnet.Endpoint{Subnet: netip.MustParsePrefix(s), PublicIP: netip.MustParseAddr(ip)}}
	}
	valid, outside := lease("10.5.7.0/24", "192.168.0.7", "one"), lease("10.6.7.0/24", "192.168.0.7", "one")
	ours, address := lease("10.5.1.0/24", "192.168.0.7", "one"), lease("10.5.7.0/24", "192.168.0.77", "one")
	other := lease("10.5.7.0/24", "192.168.0.7", "two")
	check := func(when string, j subnet.Judge, accepted, refused []*subnet.Lease) {
		t.Helper()
		if j == nil {
			t.Fatalf("%s: it has no rules", when)
		}
		for _, l := range accepted {
			if err := j.Check(l); err != nil {
				t.Errorf("%s: %v with the backend %s is refused: %v", when, l, l.Backend, err)
			}
		}
		for _, l := range refused {
			if j.Check(l) == nil {
				t.Errorf("%s: %v with the backend %s is accepted", when, l, l.Backend)
			}
		}
	}
	if err := d.acquire(t.Context(), l.in, l.node); err != nil {
		t.Fatal(err)
	}
	check("before Acquire", m.atAcquire, []*subnet.Lease{valid, ours, address}, []*subnet.Lease{outside, other})
	check("before Watch", m.judge, []*subnet.Lease{valid, address}, []*subnet.Lease{outside, other, ours})
	u.addrs = []netip.Addr{netip.MustParseAddr("192.168.0.77")}
	l.once(t, true)
	check("with another address", m.judge, []*subnet.Lease{valid}, []*subnet.Lease{outside, other, ours, address})
	l.in.setConfig([]byte("two 10.5.0.0/16"))
	l.once(t, false)
	check("with another configuration", m.judge, []*subnet.Lease{other}, []*subnet.Lease{outside, valid, ours, address})
	if err := m.judge.Check(valid); !errors.Is(err, subnet.ErrOtherConfig) {
		t.Errorf("a lease of the former configuration is refused: %v", err)
	}
}
