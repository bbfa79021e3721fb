package daemon

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
	"flannel/pkg/status"
	"flannel/subnet"
)

// What the system refuses of a few peers is theirs; of more than half, the node's. That of an only peer is the peer's.
func TestRefusedPeers(t *testing.T) {
	d, _, log := newDaemon(t)
	n := &node{backend: namedBackend{}, last: outcome{peersKnown: true}}
	var all []dataplane.Refused
	for i := range 4 {
		l := &subnet.Lease{Name: fmt.Sprint("peer", i), Backend: "one", V4: subnet.Endpoint{Subnet: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 5, byte(i), 0}), 24)}}
		l.V6.Subnet = netip.MustParsePrefix(fmt.Sprintf("fd05:0:0:%x::/64", i))
		n.last.peers = append(n.last.peers, l)
		for _, e := range l.Endpoints() {
			all = append(all, dataplane.Refused{Dst: e.Subnet, Err: errors.New("no " + e.Subnet.String())})
		}
	}
	n.last.validPeers = len(n.last.peers)
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
		err := n.recordRefused(step.refused, nil)
		var f failures
		f.add("dataplane", err)
		d.report(n, f, time.Millisecond)
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
	n.last.refused = []subnet.Rejected{{Name: "peer1"}}
	if unread := reconcile.Unknown(errors.New("no descriptors")); n.recordRefused(nil, unread) != unread || len(n.last.refused) != 1 {
		t.Errorf("what was not tried is no longer refused: %v", n.last.refused)
	}
	n.last.peers, n.last.validPeers = n.last.peers[:1], 1
	if err := n.recordRefused(all[:2], nil); err != nil || len(n.last.refused) != 1 {
		t.Errorf("the only peer is refused: %v, refused are %v", err, n.last.refused)
	}
	if got := log.Count("peer=peer1", "level=WARN"); got != 2 { // one line for each reason
		t.Errorf("%d lines give a reason for a peer, want 2:\n%s", got, log)
	}
}
