package cniinstall

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"time"

	"flannel/pkg/file"
)

// keeper keeps one file in place.
type keeper struct {
	target
	log    *slog.Logger
	pace   pacer
	warned time.Time // of an error
	fresh  bool      // a first pass has set our own parts
}

func keep(ctx context.Context, t target, log *slog.Logger) error {
	from, to := t.paths()
	source, err := file.Watch(ctx, from)
	if err != nil {
		return err
	}
	changes, err := file.Watch(ctx, to)
	if err != nil {
		return err
	}
	k := &keeper{target: t, log: log}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-source:
		case <-changes:
		case <-timer.C:
		}
		timer.Stop()
		if again := k.pass(time.Now()); again > 0 {
			timer.Reset(again)
		}
	}
}

// pass looks at the file and does what is due. It returns after how long it has to be called again at the latest; 0:
// when the file or its source changes.
func (k *keeper) pass(now time.Time) (again time.Duration) {
	_, to := k.paths()
	p, err := k.plan(!k.fresh)
	if err == nil && p.write != nil {
		if wait := k.pace.due(now, p); wait > 0 {
			return wait
		}
		if err = p.write(); err == nil {
			k.report(p, now, to)
		}
	}
	switch {
	case errors.Is(err, errChanged):
		return time.Millisecond
	case err != nil:
		if k.warned.IsZero() || now.Sub(k.warned) >= warnEvery {
			k.log.Warn("could not keep CNI file in place, will retry", "path", to, "error", err)
			k.warned = now
		}
		return retryAfter
	}
	k.fresh, k.pace.broken = true, nil
	return k.calm(now, to)
}

// calm returns after how long the present episode of repairs ends, 0 if there is none.
func (k *keeper) calm(now time.Time, path string) time.Duration {
	if k.pace.repairs == 0 {
		return 0
	}
	if rest := calmAfter - now.Sub(k.pace.last); rest > 0 {
		return rest
	}
	if k.pace.repairs > 1 {
		k.log.Info("CNI file is no longer being changed", "path", path, "repairs", k.pace.repairs)
	}
	k.pace = pacer{}
	return 0
}

// report logs every update, and of an episode of repairs the first one and that it goes on.
func (k *keeper) report(p plan, now time.Time, path string) {
	if p.update {
		p.log(k.log, slog.LevelInfo, path)
		return
	}
	switch k.pace.repaired(now) {
	case 1:
		p.log(k.log, slog.LevelInfo, path)
	case 2:
		k.log.Warn("CNI file is changed again and again, restoring it at growing intervals",
			append([]any{"path", path, "reason", p.reason, "longest", longestPause}, p.attrs...)...)
	default:
		p.log(k.log, slog.LevelDebug, path)
	}
}

const (
	// settleFor is how long a file that cannot be used has to stay as it is before it counts as broken: not every
	// writer replaces a file in one step.
	settleFor = 500 * time.Millisecond
	// Someone who undoes our repairs gets longer and longer pauses between them.
	shortestPause, longestPause = time.Second, time.Minute
	// calmAfter is how long after its last repair an episode ends.
	calmAfter = 5 * time.Minute
)

// pacer decides when a repair is due. An episode is a run of repairs without calmAfter of rest.
type pacer struct {
	repairs int // of this episode
	last    time.Time
	pause   time.Duration

	broken []byte // content that has to settle
	since  time.Time
}

// due returns how long a plan has to wait; 0: it is due. Only repairs wait.
func (p *pacer) due(now time.Time, plan plan) time.Duration {
	wait := time.Duration(0)
	if p.repairs > 0 && now.Sub(p.last) < calmAfter {
		wait = p.pause - now.Sub(p.last)
	}
	if plan.settle {
		if p.broken == nil || !bytes.Equal(p.broken, plan.found) {
			p.broken, p.since = plan.found, now
		}
		wait = max(wait, settleFor-now.Sub(p.since))
	}
	if plan.update {
		return 0
	}
	return max(wait, 0)
}

// repaired counts a repair and returns which one of its episode it is.
func (p *pacer) repaired(now time.Time) int {
	if now.Sub(p.last) >= calmAfter {
		*p = pacer{}
	}
	p.repairs++
	p.pause = min(max(2*p.pause, shortestPause), longestPause)
	p.last = now
	return p.repairs
}
