package guard

import (
	"fmt"
	"slices"
	"time"

	"github.com/google/nftables/expr"
)

// trial decides when rules may drop. The kernel counts the packets that they find whose inner source
// is in a peer's subnet ("claims to be from a peer's pod", claimed). Rules may drop once they have found
// no such packet for the time Config.Trial. Samples only describe these packets: in a flood of others,
// the kernel may have no room for a sample of such a packet. A restart of the daemon continues where
// the rules in the kernel are: if these drop, so do those of the new run. All of this but FoundOfPeer
// runs on the loop's goroutine.
//
//	state    cause                                             next     action
//	none     Apply with Enforce                                running  the rules count
//	running  a counted packet claims to be from a peer's pod,  running  the quiet time starts anew
//	         rules or counters are not known, or
//	         counters began anew
//	running  Config.Trial without such a packet                passed   the rules drop
//	any      Apply without Enforce                             none     the rules count
//	any      Apply without a guard, or Remove                  none     there are no rules
type trial struct {
	passed  bool      // a trial ended, maybe in an earlier run, whose rules dropped. mayEnforce, write and check set it
	began   time.Time // when the trial began, or rules were missing last; zero: there is no trial
	quiet   time.Time // since when nothing was found
	found   uint64    // packets that claim to be from a pod of a peer, as last read
	unread  bool      // found was not read since the trial began, or since the guard made the counters anew
	look    time.Time // when mayEnforce is to be called again (setDue has it called); zero: no look is due
	waiting string    // why the rules do not drop although they should
	last    string    // describes the last packet found in this trial; "": there was none
}

// mayEnforce begins, continues or ends the trial, and reports whether rules may drop now. The caller
// then writes such rules. If writing fails, the next call reports true, too, unless Enforce was
// switched off meanwhile.
func (g *Guard) mayEnforce(c Config, now time.Time) bool {
	t := &g.trial
	if !c.Enforce {
		t.passed = false
	}
	if !c.Enforce || t.passed {
		t.end()
		return c.Enforce
	}
	found, known := g.claims()
	switch {
	case t.began.IsZero(), g.config == nil: // rules that are not in force find nothing
		t.began, t.quiet, t.found, t.unread, t.last = now, now, found, !known, ""
	case !known: // there may have been a packet: the next reading shows it
		t.quiet = now
	case t.unread, found < t.found: // the first reading, or the counters started anew: there may have been a packet
		t.quiet, t.found, t.unread = now, found, false
	case found > t.found:
		t.quiet, t.found, t.last = now, found, "unknown" // unless a sample describes the packet
	}
	if last, text := g.samples.ofPeer(); last.After(t.began) {
		t.last = text
	}
	left := t.quiet.Add(c.Trial).Sub(now)
	if left <= 0 {
		t.passed = true
		t.end()
		return true
	}
	t.waiting = fmt.Sprintf("enforces when no packet with the address of a peer's pod would have been dropped for %v", c.Trial)
	t.look = now.Add(min(left, lookEvery))
	return false
}

// lookEvery is how long a packet may stay unnoticed during a trial, which goes on for c.Trial
// after the moment at which the packet was noticed.
const lookEvery = 5 * time.Second

// claims returns how many packets were found that claim to be from a pod of a peer; known is
// false after an error. If there is no table, there were none.
func (g *Guard) claims() (n uint64, known bool) {
	packets, err := g.counts.read(g.table)
	return packets[claimed], err == nil
}

// recently is for how long a packet that claims to be from a peer's pod is reported.
const recently = 10 * time.Minute

// FoundOfPeer describes the last packet that a rule has found and that claims to be from a
// peer's pod; empty: there was none lately. It may be called by any goroutine.
func (g *Guard) FoundOfPeer(now time.Time) string {
	last, text := g.samples.ofPeer()
	if last.IsZero() || now.Sub(last) > recently {
		return ""
	}
	return text
}

// end ends a trial.
func (t *trial) end() {
	t.began, t.look, t.waiting, t.last = time.Time{}, time.Time{}, "", ""
}

// drops reports whether expressions of a rule drop a packet.
func drops(exprs []expr.Any) bool {
	return slices.ContainsFunc(exprs, func(e expr.Any) bool {
		v, ok := e.(*expr.Verdict)
		return ok && v.Kind == expr.VerdictDrop
	})
}
