// This file keeps a file installed: an episode is a series of repairs that follow
// each other, as when another program undoes each of them.

package install

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"flannel/pkg/file"
	"flannel/pkg/reconcile"
)

// keeper updates and restores one file. Only the goroutine of keep uses it.
type keeper struct {
	target
	log      *slog.Logger
	pace     pacer  // says when a repair may be made
	enforced bool   // a pass of this process has succeeded: the file has all keys of the source
	kept     string // why another plugin is left in place, as logged; empty: it is not
	shadow   string // the last plan.shadowedBy that was logged; empty: none was
}

// awaitPlugins returns the targets of the plugins once there are plugins in their source;
// none if ctx ends before:
//
//	source                             action
//	has plugins                        return them; one that is added later is not installed
//	is missing, cannot be read, or is  leave the installed plugins as they are; log why, once a
//	  a directory without plugins        minute; look again after retryAfter
func (f Files) awaitPlugins(ctx context.Context, log *slog.Logger) (targets []target) {
	r := reconcile.Runner{
		Retry: reconcile.Backoff{First: retryAfter},
		Once:  reconcile.Once{Repeat: warnEvery},
		Work: func(context.Context) (_ time.Duration, err error) {
			targets, err = f.plugins()
			return 0, err
		},
		Tell: func(err error) {
			if err != nil {
				log.Warn("could not find the CNI plugins to install, will retry", "path", f.PluginFrom, "installed_in", f.PluginTo, "error", err)
			}
		},
	}
	_ = r.Until(ctx) // an error: ctx has ended
	return targets
}

// keep keeps one file installed until ctx ends. The daemon's Keep runs it in a
// goroutine for each. The error is that of watching the file, or file.ErrDirGone: while this
// process runs, the file cannot be written again.
func keep(ctx context.Context, t target, log *slog.Logger) error {
	sources := slices.DeleteFunc([]string{t.from, t.reads}, func(path string) bool { return path == "" })
	sourceChanges, err := file.Watch(ctx, sources...)
	if err != nil {
		return err
	}
	changes, err := file.Watch(ctx, t.to)
	if err != nil {
		return err
	}
	k := &keeper{target: t, log: log}
	running, end := context.WithCancel(ctx)
	defer end()
	var gone error // file.ErrDirGone, which ends running
	// The Runner calls pass at the start, after changes, and when the time that pass has returned is over.
	r := reconcile.Runner{
		News:  []<-chan struct{}{sourceChanges}, // ends the pause after an error
		Wakes: []<-chan struct{}{changes},       // does not, since each repair is one
		Retry: reconcile.Backoff{First: retryAfter},
		Once:  reconcile.Once{Repeat: warnEvery}, // when Tell is called with the same error again
		Work: func(context.Context) (time.Duration, error) {
			next, err := k.pass(time.Now())
			if errors.Is(err, file.ErrDirGone) {
				gone = err
				end()
			}
			return next, err
		},
		Tell: func(err error) {
			if err != nil {
				log.Warn("could not update CNI file, will retry", "path", t.to, "error", err)
			}
		},
	}
	r.Run(running)
	return gone
}

// pass compares the file with its source and writes it if that is due. It returns
// when to call it again at the latest; 0: only when the file or its source changes.
func (k *keeper) pass(now time.Time) (next time.Duration, err error) {
	written := false
	p, err := k.plan(!k.enforced)
	if err == nil && p.write != nil {
		if delay := k.pace.delay(now, p); delay > 0 {
			return delay, nil // the next pass plans anew
		}
		if written, err = p.write(); written {
			k.report(p, now)
		}
	}
	if err == nil && p.kept != k.kept {
		if k.kept = p.kept; p.kept != "" {
			k.log.Warn("left another CNI plugin in place; replace it with --cni-plugin-replace or install-cni --replace-plugin",
				"path", k.to, "reason", p.kept)
		}
	}
	if err == nil && p.shadowedBy != "" && p.shadowedBy != k.shadow {
		k.shadow = p.shadowedBy
		k.log.Warn("container runtimes use another CNI configuration for pods, because it sorts before this one",
			"cause", causeShadowed, "path", k.to, "used", p.shadowedBy)
	}
	switch {
	case errors.Is(err, errChanged):
		return time.Millisecond, nil // at once; 0 would wait for another change
	case err != nil:
		return 0, err
	}
	k.enforced, k.pace.content = true, nil // no unusable content is left
	if written {
		return recheckAfter, nil
	}
	return k.endEpisode(now), nil
}

// endEpisode ends the episode of repairs if its last one was quietFor ago. It
// returns in how long the episode will end; 0: there is none now.
func (k *keeper) endEpisode(now time.Time) time.Duration {
	if k.pace.repairs == 0 {
		return 0
	}
	if left := quietFor - now.Sub(k.pace.last); left > 0 {
		return left
	}
	if k.pace.repairs > 1 {
		k.log.Info("CNI file is no longer being changed", "path", k.to, "repairs", k.pace.repairs)
	}
	k.pace = pacer{}
	return 0
}

// report counts a repair and logs it: the first one of an episode, and at the
// second one that further ones follow. It logs every update.
func (k *keeper) report(p plan, now time.Time) {
	if !p.update {
		k.pace.countRepair(now)
	}
	switch {
	case p.update || k.pace.repairs == 1:
		p.log(k.log, slog.LevelInfo, k.to)
	case k.pace.repairs == 2:
		k.log.Warn("CNI file is repeatedly changed by another program, restoring it at growing intervals",
			append([]any{"path", k.to, "reason", p.reason, "longest", longestPause}, p.attrs...)...)
	default:
		p.log(k.log, slog.LevelDebug, k.to)
	}
}

const (
	retryAfter = 5 * time.Second // after an error
	warnEvery  = time.Minute     // of errors

	// recheckAfter is how long after a write the file is compared again: file.Watch looks once a
	// second whether a directory that the write has made exists, and does not notice that it
	// is deleted before.
	recheckAfter = 5 * time.Second

	// stableFor is how long an unusable file must stay the same before it is
	// repaired: not every program replaces a file in one step.
	stableFor = 500 * time.Millisecond
	// The pause between two repairs of an episode doubles each time, because
	// another program may undo each of them at once.
	shortestPause, longestPause = time.Second, time.Minute
	// quietFor is how long after its last repair an episode ends.
	quietFor = 5 * time.Minute
)

// pacer delays repairs. An episode is a series of repairs, each less than quietFor
// after the one before. The zero pacer is in no episode.
type pacer struct {
	repairs int           // in this episode; 0: there is none
	last    time.Time     // time of the last repair
	pause   time.Duration // before the next repair

	content []byte    // unusable content that must stay the same for stableFor; nil: none
	since   time.Time // when content was first seen
}

// delay returns how long a plan has to wait; 0: it may be carried out. Only a repair waits for
// its pause, and every plan with awaitStable until the file has stayed the same for stableFor.
// It notes since when the file has had its present content.
func (p *pacer) delay(now time.Time, next plan) time.Duration {
	delay := time.Duration(0)
	if !next.update && p.repairs > 0 && now.Sub(p.last) < quietFor {
		delay = p.pause - now.Sub(p.last)
	}
	if next.awaitStable {
		if p.content == nil || !bytes.Equal(p.content, next.found) {
			p.content, p.since = next.found, now
		}
		delay = max(delay, stableFor-now.Sub(p.since))
	}
	return max(delay, 0)
}

// countRepair counts a repair, in a new episode if the last one is over.
func (p *pacer) countRepair(now time.Time) {
	if now.Sub(p.last) >= quietFor {
		*p = pacer{}
	}
	p.repairs++
	p.pause = min(max(2*p.pause, shortestPause), longestPause)
	p.last = now
}
