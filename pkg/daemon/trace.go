package daemon

import (
	"context"
	"log/slog"
	"time"

	"flannel/pkg/reconcile"
)

// passLogPart logs passes that changed something.
func (d *Daemon) passLogPart() part {
	logged := &passLog{}
	return part{log: func(p *pass) { logged.log(d.Log, d.Tally, p.rules, p.took) }}
}

// passLog logs passes at the debug level: each one that changed something, and once
// per repeatLog that there were others.
type passLog struct {
	idle   int       // passes since idleAt that changed nothing
	idleAt time.Time // when idle passes were logged last
}

// log logs one line, however many entries the pass changed.
func (l *passLog) log(log *slog.Logger, tally *reconcile.Tally, rules int, took time.Duration) {
	if !log.Enabled(context.Background(), slog.LevelDebug) {
		return
	}
	if done, tables := tally.Take(); done != (reconcile.Result{}) || rules > 0 {
		log.Debug("pass changed the system", "added", done.Added(), "changed", done.Replaced, "deleted", done.Deleted, "refused", done.Failed,
			"tables", tables, "firewallRules", rules, "took", took.Round(time.Microsecond))
		return
	}
	l.idle++
	if now := time.Now(); now.Sub(l.idleAt) >= repeatLog {
		log.Debug("passes changed nothing", "passes", l.idle, "took", took.Round(time.Microsecond))
		l.idle, l.idleAt = 0, now
	}
}
