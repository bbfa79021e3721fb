package soak

import (
	"slices"
	"strings"
	"testing"
	"time"

	"flannel/cmd/flannel-lab/lab"
)

// drifted is about what others changed on a node, and when it may have cut the node off.
type drifted struct {
	last time.Time   // when something was changed last
	cut  []time.Time // when nobody could repair it at once
}

const (
	// repairTime is more than a running daemon needs for a repair.
	repairTime = 10 * time.Second
	// excuse is how long after a cut an alarm may be about it: until the check, which
	// starts what was stopped, and until the probes have decided.
	excuse = time.Minute
)

// noteDrift records that something was changed on a node. If its daemon does not run, or
// cannot publish a changed MAC address, the node may be cut off.
func (s *soak) noteDrift(n *lab.Node) {
	d := s.drifted[n]
	d.last = time.Now()
	if s.etcdDown || running(n) != "running" {
		d.cut = append(d.cut, d.last)
	}
	s.drifted[n] = d
}

// noteEnd records that the daemon of a node, or etcd, is ended, maybe during a repair.
func (s *soak) noteEnd(nodes ...*lab.Node) {
	for _, n := range nodes {
		if d := s.drifted[n]; time.Since(d.last) < repairTime {
			d.cut = append(d.cut, time.Now())
			s.drifted[n] = d
		}
	}
}

// checkAlarms checks that no daemon has logged that a real node is not reachable, unless
// one of the two was cut off. The other peers do not exist, so all are unreachable.
func (s *soak) checkAlarms(t *testing.T) {
	t.Helper()
	alarms, excused := 0, 0
	for _, at := range s.Nodes {
		for _, cause := range []string{"peer-unreachable", "peer-one-way", "peer-mtu", "peer-not-forwarding"} {
			for i, of := range s.Nodes {
				found := at.Records(0).With("cause="+cause, "peer="+subnets+s.members[i].key)
				times := found.Values("time")
				for j, text := range times {
					alarms++
					when, err := time.Parse(time.RFC3339, text)
					must(t, err)
					if s.wasCut(at, when) || s.wasCut(of, when) {
						excused++
						continue
					}
					t.Errorf("false alarm at %s about %s: %s", at.Name, of.Name, found[j])
				}
			}
		}
		if !strings.Contains(at.Log(), "peer-unreachable") && len(s.peers) > 0 {
			t.Logf("%s has not found that the other peers do not exist", at.Name)
		}
	}
	t.Logf("%d alarms about real nodes, %d of them after a cut", alarms, excused)
}

// wasCut reports whether a node may have been cut off shortly before.
func (s *soak) wasCut(n *lab.Node, when time.Time) bool {
	return slices.ContainsFunc(s.drifted[n].cut, func(cut time.Time) bool { return when.After(cut.Add(-time.Second)) && when.Sub(cut) < excuse })
}
