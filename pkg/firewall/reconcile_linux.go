//go:build linux

package firewall

import (
	"context"
	"time"
)

const (
	// After an error, a place is retried after firstRetry, then after twice the previous pause, up to lastRetry.
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
	// Where another program undoes our rules again and again, the first repairBurst repairs are made at once. After
	// them one is made per resync, or per repairInterval if there is no resync.
	repairBurst    = 20
	repairInterval = 5 * time.Second
)

// reconcile compares one place with the wanted rules, and repairs it, if a check is pending and not backed off.
//
//	state                    cause                                action of reconcile
//	synced                   last check found or wrote the rules  none
//	needsCheck               new Config, notification, resync     compare the digest, else read and sync
//	needsCheck, retry        last sync failed                     none until retry is due; returns its error
//	needsCheck, throttled    undone too often (warned)            none until then; no error
func (f *Firewall) reconcile(ctx context.Context, s *placeState, now time.Time) (int, error) {
	if !s.needsCheck || !s.retry.Due() || now.Before(s.throttled) {
		return 0, s.retry.Err()
	}
	// The digest is taken before the rules are read. If somebody changes them in between, the next digest differs from
	// this one and the rules are read again.
	digest := s.digest()
	if digest != 0 && digest == s.syncedDigest {
		s.needsCheck = false
		return 0, nil
	}
	n, err := f.syncPlace(ctx, s)
	if err != nil && ctx.Err() != nil {
		return 0, err // we are shutting down: no reason for a backoff
	}
	if err != nil {
		s.syncedDigest = 0
		s.retry.Fail(err)
		return 0, err
	}
	s.retry.Clear()
	s.needsCheck, s.syncedDigest = false, digest
	if n > 0 {
		s.syncedDigest = 0 // the digest is of the rules before our write: read them once more at the next check
		f.recordChange(s, now)
	}
	s.synced = true
	return n, nil
}

// recordChange logs a change of a place. If the place was synced before, another program changed our rules: each
// repair then costs a token, and without tokens the next check waits for an interval.
func (f *Firewall) recordChange(s *placeState, now time.Time) {
	if !s.synced {
		if len(s.want) > 0 {
			f.log.Info("wrote firewall rules", "where", s.String())
		} else {
			f.log.Info("removed firewall rules of a previous configuration", "where", s.String())
		}
		return
	}
	if f.report != nil {
		f.report()
	}
	interval := f.resync
	if interval <= 0 {
		interval = repairInterval
	}
	if s.repairs.spend(now, interval) {
		s.warned = false
		f.log.Info("repaired firewall rules that another program had changed", "where", s.String())
		return
	}
	s.throttled = now.Add(interval)
	if !s.warned {
		s.warned = true
		f.log.Warn("another program undoes our firewall rules again and again", "where", s.String(), "interval", interval)
	}
}

// tokenBucket holds repairBurst tokens and gains one per interval. The zero tokenBucket is full.
type tokenBucket struct {
	spent float64
	last  time.Time // of the last call of spend
}

// spend takes one token, and reports whether another is left. Otherwise the caller has to slow down.
func (b *tokenBucket) spend(now time.Time, interval time.Duration) (left bool) {
	if !b.last.IsZero() {
		b.spent = max(0, b.spent-float64(now.Sub(b.last))/float64(interval))
	}
	b.last = now
	b.spent = min(b.spent+1, repairBurst)
	return repairBurst-b.spent >= 1
}
