package status

import (
	"fmt"
	"strings"
	"time"
)

// alarms has the states of a peer that is not reachable as it should be, and what is said of
// such a peer.
var alarms = map[ReachState]string{
	Unreachable:   "is unreachable",
	OneWay:        "is reachable in one direction only (one-way)",
	NotForwarding: "does not forward packets from or to its pods (not-forwarding)",
	SmallOnly:     "answers no packets of the size of the pods' MTU, only small ones (mtu)",
}

// bad reports whether probes have found that a peer is not reachable as it should be.
func (r *Reach) bad() bool { return r != nil && alarms[r.State] != "" }

// alarming reports whether the peer's Reach is a problem to look for. It is none while the peer is retained:
// the peer may be gone for good.
func (p *Peer) alarming() bool { return p.Reach.bad() && p.Until.IsZero() }

// probes prints the number of peers in each state that probes have found, as the metric flanneld_probed_peers has it.
func (p *printer) probes(peers []Peer) {
	n := map[ReachState]int{}
	for _, peer := range peers {
		switch {
		case peer.Reach == nil:
		case peer.Reach.bad() && !peer.alarming():
			n[UnknownReach]++
		default:
			n[peer.Reach.State]++
		}
	}
	var texts []string
	hint := ""
	for _, state := range []ReachState{Reachable, Unreachable, OneWay, NotForwarding, SmallOnly, Unproven, UnknownReach} {
		if n[state] > 0 {
			texts = append(texts, fmt.Sprintf("%d %s", n[state], state))
			if alarms[state] != "" {
				hint = "; flanneld doctor looks for the cause"
			}
		}
	}
	if len(texts) > 0 {
		p.row("probes", "%s%s", strings.Join(texts, ", "), hint)
	}
}

// reach returns the cell of what is known of a peer, and for how long if it is bad.
func (p *printer) reach(r *Reach) string {
	switch {
	case r == nil:
		return ""
	case r.bad():
		return fmt.Sprintf("%s for %s", r.State, p.now.Sub(r.Since).Round(time.Second))
	}
	return string(r.State)
}

// answered returns the cells of the way of the probes, and of the last answer.
func (p *printer) answered(r *Reach) []string {
	if r == nil {
		return []string{"", ""}
	}
	answer := p.ago(r.Answered)
	if !r.Answered.IsZero() && r.RTT > 0 {
		answer += fmt.Sprintf(" in %s", time.Duration(r.RTT).Round(10*time.Microsecond))
	}
	return []string{string(r.Via), answer}
}

// ago formats how long ago something was.
func (p *printer) ago(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return p.now.Sub(t).Round(time.Second).String() + " ago"
}
