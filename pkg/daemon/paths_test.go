package daemon

import (
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

// What the system refuses of a few peers is theirs; of more than half, the node's. That of an only peer is the peer's.
func TestRefusedPeers(t *testing.T) {
	d, _, log := newDaemon(t)
	loop, paths, set := d.newLoop(viewed().node, newInbox()), &pathsState{}, subnet.Set{}
	var all []dataplane.Refused
	for i := range 4 {
		l := &subnet.Lease{Name: fmt.Sprint("peer", i), Backend: "one", V4: subnet.Endpoint{Subnet: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 5, byte(i), 0}), 24)}}
		l.V6.Subnet = netip.MustParsePrefix(fmt.Sprintf("fd05:0:0:%x::/64", i))
		set.Leases = append(set.Leases, l)
		for _, e := range l.Endpoints() {
			all = append(all, dataplane.Refused{Dst: e.Subnet, Err: errors.New("no " + e.Subnet.String())})
		}
	}
	onPass := func() *pass {
		p := loop.newPass()
		p.known, p.set, p.valid = true, set, len(set.Leases)
		return p
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
		p := onPass()
		err := paths.recordRefused(p, step.refused, nil)
		p.refused = paths.refused
		p.failed.add(partPaths, err)
		loop.report(p)
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
	paths.refused = []subnet.Rejected{{Name: "peer1"}}
	if unread := reconcile.Unknown(errors.New("no descriptors")); paths.recordRefused(onPass(), nil, unread) != unread || len(paths.refused) != 1 {
		t.Errorf("what was not tried is no longer refused: %v", paths.refused)
	}
	set.Leases = set.Leases[:1]
	if err := paths.recordRefused(onPass(), all[:2], nil); err != nil || len(paths.refused) != 1 {
		t.Errorf("the only peer is refused: %v, refused are %v", err, paths.refused)
	}
	if got := log.Count("peer=peer1", "level=WARN"); got != 2 { // one line for each reason
		t.Errorf("%d lines give a reason for a peer, want 2:\n%s", got, log)
	}
}
