package daemon

import (
	"log/slog"
	"slices"
	"time"

	"golang.org/x/time/rate"
)

// rejectsPart reports peers that are rejected, or for which the system refused an entry.
func (d *Daemon) rejectsPart() part {
	return part{log: (&rejectsLog{log: d.Log, lines: rate.NewLimiter(linesPerSecond, maxLines)}).logChanges,
		report: func(p *pass) { p.store.Rejects = slices.Concat(p.rejects, p.refused) }}
}

// rejectsLog is what was logged about rejected and refused peers.
type rejectsLog struct {
	log       *slog.Logger
	rejects   map[string]string // by the name of a peer: the reason
	lines     *rate.Limiter     // of the log
	omittedAt time.Time         // when it was logged that some are omitted
}

// logChanges logs each rejected or refused peer once, and again when its
// reason changes, and logs when the problem of a peer that still exists is over. What
// exceeds the limit is logged after a later pass, which begins within repeatLog.
func (l *rejectsLog) logChanges(p *pass) {
	now := time.Now()
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
		if !l.lines.AllowN(now, 1) {
			omitted++
			if known {
				reasons[reject.Name] = former
			}
			continue
		}
		msg, cause := "peer rejected", causePeerRejected
		if i >= len(p.rejects) { // behind them are p.refused, see rejectsPart
			msg, cause = "the system refused an entry of a peer", causePeerRefused
		}
		l.log.Warn(msg, "cause", cause, "peer", reject.Name, "reason", reject.Reason)
		reasons[reject.Name] = reject.Reason
	}
	var peers map[string]bool // by name; nil: not needed yet
	for name := range l.rejects {
		if _, still := reasons[name]; still {
			continue
		}
		if peers == nil {
			peers = make(map[string]bool, len(p.set.Leases))
			for _, peer := range p.set.Leases {
				peers[peer.Name] = true
			}
		}
		if peers[name] && l.lines.AllowN(now, 1) {
			l.log.Info("peer recovered", "cause", causePeerRecovered, "peer", name)
		}
	}
	if omitted > 0 {
		p.wakeAt(now.Add(repeatLog))
	}
	if omitted > 0 && now.Sub(l.omittedAt) >= repeatLog {
		l.log.Warn("too many rejected peers to log each of them", "cause", causePeersOmitted, "count", omitted)
		l.omittedAt = now
	}
	l.rejects = reasons
}

// The log may name hundreds of rejected peers that appear at once, each with a line, but a
// peer whose problem changes ten times a second must not fill the disk.
const (
	maxLines       = 1000
	linesPerSecond = 1 // after maxLines
)
