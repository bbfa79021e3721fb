package plan

import (
	"slices"
	"testing"

	"flannel/subnet"
)

// rejectedBy returns the names of the peers that a plan rejects, in their order.
func rejectedBy(p *Plan, leases ...*subnet.Lease) (names []string) {
	_, rejects := p.Paths(slices.SortedFunc(slices.Values(leases), subnet.Compare))
	for _, r := range rejects {
		names = append(names, r.Name)
	}
	return names
}

// A public IP inside another's subnet gets the peer with the IP rejected, if the cluster assigns the subnets, and else if the
// subnet is not larger than the usual size.
func TestLoopsWithTwoLengths(t *testing.T) {
	for _, c := range []struct {
		owner    string
		assigned bool
		owners   bool // it is the owner that is rejected
	}{{"10.5.7.0/25", false, false}, {"10.5.7.0/25", true, false}, {"10.5.7.0/24", false, false}, {"10.5.6.0/23", false, true}, {"10.5.6.0/23", true, false}} {
		owner, inside := peerLease(c.owner, "192.168.100.7", 7), peerLease("10.5.2.0/24", "10.5.7.5", 2)
		p := newPlan(t, false)
		p.cfg.Assigned = c.assigned
		want := inside.Name
		if c.owners {
			want = owner.Name
		}
		if got := rejectedBy(p, owner, inside); !slices.Equal(got, []string{want}) {
			t.Errorf("%+v: rejected %v, want %s alone", c, got, want)
		}
	}
}
