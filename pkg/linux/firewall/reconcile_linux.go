package firewall

import (
	"cmp"
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

// reconcile compares one place with the wanted rules, and repairs it, if a check is pending and not backed off. It returns
// how many chains it wrote or removed.
//
//	state                    cause                                action of reconcile
//	synced                   last check found or wrote the rules  none
//	needsCheck               new Config, notification, resync     compare the digest, else read and sync
//	needsCheck, retry        last sync failed                     none until retry is due; returns its error
//	needsCheck, throttled    undone too often (warned)            none until then; no error
func (f *Firewall) reconcile(ctx context.Context, s *placeState, now time.Time) (int, error) {
	if !s.due(now) {
		return 0, s.retry.Err() // nil unless the last sync failed
	}
	// The digest is taken before the rules are read. If somebody changes them in between, the next digest differs from
	// this one and the rules are read again.
	digest := s.digest()
	if s.sameAsSynced(digest) {
		s.needsCheck = false
		return 0, nil
	}
	n, err := f.syncPlace(ctx, s)
	if n > 0 { // also before an error: the retry may find nothing left to write
		digest = 0 // it is that of the rules before our write: read them once more at the next check
		f.recordChange(s, now)
	}
	if err != nil && ctx.Err() != nil {
		return n, err // we are shutting down: no reason for a backoff
	}
	if err != nil {
		s.syncedDigest = 0
		s.retry.Fail(err)
		return n, err
	}
	s.retry.Clear()
	s.needsCheck, s.syncedDigest, s.synced = false, digest, true
	return n, nil
}

// due reports whether to look at a place now: a check is pending, and neither backed off nor throttled.
func (s *placeState) due(now time.Time) bool {
	return s.needsCheck && s.retry.Due() && !now.Before(s.throttled)
}

// sameAsSynced reports whether a place with this digest is as it was when its rules were last found equal to want.
func (s *placeState) sameAsSynced(digest uint64) bool { return digest != 0 && digest == s.syncedDigest }

// unchanged reports whether a place is as it was when its rules were last found equal to want, for Check. generation reads
// that of nf_tables, 0 if it is unknown: while it stays the same, no digest is needed.
func (s *placeState) unchanged(generation func() uint32) bool {
	if s.topics == 0 { // the legacy variant, which is not in nf_tables
		return s.sameAsSynced(s.digest())
	}
	now := generation() // before the digest: the next one differs if somebody changes the rules in between
	if now != 0 && now == s.generation && s.syncedDigest != 0 {
		return true
	}
	same := s.sameAsSynced(s.digest())
	if s.generation = 0; same {
		s.generation = now
	}
	return same
}

// recordChange logs that sync has changed a place. If the place was synced before, another program had changed our rules:
// each repair then costs a token (one is gained in each interval, up to repairBurst), and when no token is left, the next
// check waits for an interval.
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
	s.repairs.AllowN(now, 1) // takes a token, if there is one; the repair has been made in any case
	if s.repairs.TokensAt(now) >= 1 {
		s.warned = false
		f.log.Info("repaired firewall rules that another program had changed", "where", s.String())
		return
	}
	interval := f.repairEvery()
	s.throttled = now.Add(interval)
	if !s.warned {
		s.warned = true
		f.log.Warn("another program undoes our firewall rules again and again", "where", s.String(), "interval", interval)
	}
}

// repairEvery returns the interval in which a place gains a token: that of the resync, else repairInterval.
func (f *Firewall) repairEvery() time.Duration { return cmp.Or(max(f.resync, 0), repairInterval) }
