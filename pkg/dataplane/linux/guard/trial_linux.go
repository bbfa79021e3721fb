package guard

import (
	"fmt"
	"slices"
	"time"

	"github.com/google/nftables/expr"
)

// trial decides when rules may drop: not before they have found nothing of a peer for
// some time. A restart of the daemon continues where the rules in the kernel are.
type trial struct {
	dropping bool      // the rules in the kernel drop
	began    time.Time // zero: there is no trial
	timer    *time.Timer
	found    uint64 // packets, when it began
	waiting  string // why the rules do not drop although they should
}

// mayEnforce reports whether rules may drop now.
func (g *Guard) mayEnforce(c Config, now time.Time) bool {
	t := &g.trial
	if !c.Enforce || t.dropping {
		t.end()
		return c.Enforce
	}
	if t.began.IsZero() {
		t.began, t.found = now, g.found()
	}
	quiet, which := t.began, ""
	if last, text := g.samples.ofPeer(); last.After(quiet) {
		quiet, which = last, text
	}
	if g.unsampled != nil {
		if n := g.found(); n != t.found {
			t.began, t.found = now, n
			quiet = now
		}
		which = fmt.Sprintf("whose are unknown: %v", g.unsampled)
	}
	left := quiet.Add(c.Trial).Sub(now)
	if left <= 0 {
		t.end()
		return true
	}
	t.waiting = fmt.Sprintf("enforces when no packet of a peer would have been dropped for %v", c.Trial)
	if which != "" {
		t.waiting += "; the last one: " + which
	}
	if t.timer == nil {
		t.timer = time.AfterFunc(left, g.notify)
	} else {
		t.timer.Reset(left)
	}
	return false
}

// found returns how many packets that a peer may have sent were found.
func (g *Guard) found() (n uint64) {
	packets, _ := g.Counts()
	return packets[Outsider] + packets[Impostor] + packets[Inner] + packets[Spoofed]
}

// recently is for how long a packet of a peer is reported.
const recently = 10 * time.Minute

// FoundOfPeer describes the last packet of a peer that a rule has found; empty: there was
// none lately. It may be called by any goroutine.
func (g *Guard) FoundOfPeer(now time.Time) string {
	last, text := g.samples.ofPeer()
	if last.IsZero() || now.Sub(last) > recently {
		return ""
	}
	return text
}

// end ends a trial.
func (t *trial) end() {
	if t.timer != nil {
		t.timer.Stop()
	}
	t.began, t.waiting = time.Time{}, ""
}

// drops reports whether expressions of a rule drop a packet.
func drops(exprs []expr.Any) bool {
	return slices.ContainsFunc(exprs, func(e expr.Any) bool {
		v, ok := e.(*expr.Verdict)
		return ok && v.Kind == expr.VerdictDrop
	})
}
