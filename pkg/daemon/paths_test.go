package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
	"flannel/pkg/status"
	"flannel/subnet"
)

// refusingKernel refuses entries.
type refusingKernel struct {
	plainKernel
	refused []dataplane.Refused
	err     error
}

func (k *refusingKernel) Apply(context.Context, dataplane.Links, dataplane.State) ([]dataplane.Refused, error) {
	return k.refused, k.err
}

// What the system refuses of a few peers is theirs; of more than half, the node's. That of an only peer is the peer's.
func TestRefusedPeers(t *testing.T) {
	d, _, log := newDaemon(t)
	kernel, set := &refusingKernel{}, subnet.Set{}
	d.Dataplane = kernel
	l := d.newLoop(viewed().node, newInbox())
	var all []dataplane.Refused
	for i := range 4 {
		peer := &subnet.Lease{Name: fmt.Sprint("peer", i), Backend: "one", V4: subnet.Endpoint{Subnet: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 5, byte(i), 0}), 24)}}
		peer.V6.Subnet = netip.MustParsePrefix(fmt.Sprintf("fd05:0:0:%x::/64", i))
		set.Leases = append(set.Leases, peer)
		for _, e := range peer.Endpoints() {
			all = append(all, dataplane.Refused{Dst: e.Subnet, Err: errors.New("no " + e.Subnet.String())})
		}
	}
	apply := func(refused []dataplane.Refused, unread error) (*pass, error) {
		p := l.newPass()
		p.known, p.set, p.valid = true, set, len(set.Leases)
		kernel.refused, kernel.err = refused, unread
		return p, l.only(t, p, partPaths)
	}
	for _, step := range []struct {
		refused []dataplane.Refused
		behind  []string
		fails   bool
	}{
		{nil, nil, false},
		{all[2:3], []string{"peer1"}, false},
		{all[2:4], []string{"peer1"}, false}, // both families of one peer
		{all[1:4], []string{"peer0", "peer1"}, false},
		{all[:5], []string{"peer0", "peer1", "peer2"}, true},
		{all[3:4], []string{"peer1"}, false},
		{nil, nil, false},
	} {
		p, err := apply(step.refused, nil)
		l.report(p)
		if (err != nil) != step.fails || d.Board.Now().Ready == step.fails || step.fails && !errors.Is(err, step.refused[0].Err) {
			t.Errorf("%d refused: %v, ready: %v", len(step.refused), err, d.Board.Now().Ready)
		}
		var behind []string
		r := d.view.now()
		for _, p := range r.Peers {
			if p.Reason != "" && p.State == status.Behind {
				behind = append(behind, p.Name)
			}
		}
		if !slices.Equal(behind, step.behind) {
			t.Errorf("%d refused: refused are %v, want %v", len(step.refused), behind, step.behind)
		}
	}
	if p, err := apply(all[2:3], nil); err != nil || len(p.refused) != 1 {
		t.Errorf("one is refused: %v, refused are %v", err, p.refused)
	}
	unread := reconcile.Unknown(errors.New("no descriptors"))
	if p, err := apply(nil, unread); !errors.Is(err, unread) || len(p.refused) != 1 {
		t.Errorf("what was not tried is no longer refused: %v, refused are %v", err, p.refused)
	}
	set.Leases = set.Leases[:1]
	if p, err := apply(all[:2], nil); err != nil || len(p.refused) != 1 {
		t.Errorf("the only peer is refused: %v, refused are %v", err, p.refused)
	}
	if got := log.Count("peer=peer1", "level=WARN"); got != 2 { // one line for each reason
		t.Errorf("%d lines give a reason for a peer, want 2:\n%s", got, log)
	}
}
