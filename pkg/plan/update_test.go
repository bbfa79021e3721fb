package plan

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"flannel/subnet"
)

// Where nobody is in anybody's way, which is the rule, the paths of a few changed peers are put between the others':
// of peers with none, one and two, and now and then beside one that is left out.
func TestSplicedIsTheSameAsFresh(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	make1 := func(i int) *subnet.Lease {
		l := peerLease(fmt.Sprintf("10.5.%d.0/24", i+2), fmt.Sprintf("192.168.100.%d", i+2), rnd.IntN(100)*100+i)
		l.V6 = subnet.Endpoint{Subnet: netip.MustParsePrefix(fmt.Sprintf("2001:cafe:42:%x::/64", i+2)), PublicIP: netip.MustParseAddr(fmt.Sprintf("fd00:100::%x", i+2)), Data: l.V4.Data}
		switch rnd.IntN(40) {
		case 0, 1, 2:
			l.Backend, l.V4.Data, l.V6.Data = "", nil, nil
		case 3, 4, 5:
			l.V6 = subnet.Endpoint{}
		case 6:
			l.V4.Data = json.RawMessage(`"garbage"`)
		}
		return l
	}
	p := newPlan(t, true)
	var set [10]*subnet.Lease // nil: that peer is not there
	spliced := 0
	for range 2000 {
		for range rnd.IntN(3) {
			if i := rnd.IntN(len(set)); rnd.IntN(3) == 0 {
				set[i] = nil
			} else {
				set[i] = make1(i)
			}
		}
		leases := slices.DeleteFunc(slices.Clone(set[:]), func(l *subnet.Lease) bool { return l == nil })
		before := len(p.rejects) == 0
		got, gotRejects := p.Paths(leases)
		want, wantRejects := newPlan(t, true).Paths(leases)
		if dsts(got) != dsts(want) || !slices.Equal(gotRejects, wantRejects) {
			t.Fatalf("after changes: %s, %v\nfresh: %s, %v", dsts(got), gotRejects, dsts(want), wantRejects)
		}
		for i := range got {
			if *got[i] != *want[i] {
				t.Fatalf("path %v, want %v", *got[i], *want[i])
			}
		}
		if before && len(gotRejects) == 0 {
			spliced++
		}
	}
	if spliced < 200 {
		t.Errorf("only %d of the sets came by splicing", spliced)
	}
}
