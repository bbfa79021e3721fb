package daemon

import (
	"log/slog"
	"slices"
	"time"
)

// rejectsPart reports peers that are rejected, or for which the system refused an entry.
func (d *Daemon) rejectsPart() part {
	return part{log: (&rejectsLog{log: d.Log}).logChanges,
		report: func(p *pass) { p.store.Rejects = slices.Concat(p.rejects, p.refused) }}
}

// rejectsLog is what was logged about rejected and refused peers.
type rejectsLog struct {
	log       *slog.Logger
	rejects   map[string]string // by the name of a peer: the reason
	budget    lineBudget
	omittedAt time.Time // when it was logged that some are omitted
}

// logChanges logs each rejected or refused peer once, and again when its
// reason changes, and logs when the problem is over. What exceeds the budget is
// logged after a later pass.
func (l *rejectsLog) logChanges(p *pass) {
	now := time.Now()
	l.budget.refill(now)
	// For example, with room for one line, peers a (logged before with another reason)
	// and b (new): the change of a is logged. b is not in reasons, so that a later pass
	// takes it for new and logs it.
	reasons := make(map[string]string, len(p.rejects)) // as logged, now or before
	omitted := 0
	for i, reject := range p.store.Rejects {
		former, known := l.rejects[reject.Name]
		if known && former == reject.Reason {
			reasons[reject.Name] = former
			continue
		}
		if l.budget.empty() {
			omitted++
			if known {
				reasons[reject.Name] = former
			}
			continue
		}
		l.budget.used++
		msg, cause := "peer rejected", causePeerRejected
		if i >= len(p.rejects) {
			msg, cause = "the system refused an entry of a peer", causePeerRefused
		}
		l.log.Warn(msg, "cause", cause, "peer", reject.Name, "reason", reject.Reason)
		reasons[reject.Name] = reject.Reason
	}
	for name := range l.rejects {
		if _, still := reasons[name]; !still && !l.budget.empty() {
			l.budget.used++
			l.log.Info("peer recovered", "cause", causePeerRecovered, "peer", name)
		}
	}
	if omitted > 0 && now.Sub(l.omittedAt) > repeatLog {
		l.log.Warn("too many rejected peers to log each of them", "cause", causePeersOmitted, "count", omitted)
		l.omittedAt = now
	}
	l.rejects = reasons
}

// lineBudget limits the log lines about rejected peers: hundreds of them may
// appear at once, and each should be named, but a peer whose problem changes
// ten times a second must not fill the disk. The zero lineBudget allows
// maxLines.
type lineBudget struct {
	used float64   // of maxLines
	at   time.Time // of the last refill
}

const (
	maxLines       = 1000
	linesPerSecond = 1
)

// refill reduces used by the time since the last refill. The first call, with a zero
// at, reduces it to 0.
func (b *lineBudget) refill(now time.Time) {
	b.used = max(0, b.used-linesPerSecond*now.Sub(b.at).Seconds())
	b.at = now
}

func (b *lineBudget) empty() bool { return b.used > maxLines-1 }
