//go:build linux

package firewall

import (
	"context"
	"errors"
	"time"
)

const (
	minPause = time.Second // between two tries after an error; doubles up to maxPause
	maxPause = 30 * time.Second
	// A program that undoes our rules as fast as we mend them is answered burst times at once, and from then on once
	// in a resync, or in calm where there is no resync.
	burst = 20
	calm  = 5 * time.Second
)

// look brings one spot in step if it is to be looked at.
func (f *Firewall) look(ctx context.Context, s *spot, now time.Time) (int, error) {
	if !s.check || now.Before(s.notBy) {
		return 0, s.err
	}
	// Taken before the rules are read: after a change in between, the next one differs and they are read once more.
	digest := s.digest()
	if digest != 0 && digest == s.clean {
		s.check = false
		return 0, nil
	}
	n, err := f.write(ctx, s)
	if err != nil && ctx.Err() != nil {
		return 0, err // says nothing about the next try
	}
	if err != nil {
		s.err, s.clean = err, 0
		s.pause = min(max(2*s.pause, minPause), maxPause)
		s.notBy = now.Add(s.pause)
		return 0, err
	}
	s.check, s.err, s.pause, s.clean = false, nil, 0, digest
	if n > 0 {
		s.clean = 0 // what we wrote is yet to be read once
		f.wrote(s, now)
	}
	s.settled = true
	return n, nil
}

// write syncs, without --random-fully if that is what the kernel or iptables refuses.
func (f *Firewall) write(ctx context.Context, s *spot) (int, error) {
	n, err := s.sync(ctx, s.want)
	if !errors.Is(err, errRefused) || !usesRandom(s.want) || ctx.Err() != nil {
		return n, err
	}
	n, plainErr := s.sync(ctx, withoutRandom(s.want))
	if plainErr != nil {
		return 0, err // it was not for that
	}
	f.log.Warn("fully random ports for masquerading are not supported here, they are chosen in order", "where", s.String(), "err", err)
	f.plain = true
	for _, s := range f.spots {
		s.want = withoutRandom(s.want)
	}
	return n, nil
}

// wrote logs a change, and slows down where another program undoes ours again and again.
func (f *Firewall) wrote(s *spot, now time.Time) {
	if !s.settled {
		if len(s.want) > 0 {
			f.log.Info("wrote firewall rules", "where", s.String())
		} else {
			f.log.Info("removed firewall rules of a former configuration", "where", s.String())
		}
		return
	}
	every := f.resync
	if every <= 0 {
		every = calm
	}
	left := s.mends.spend(now, every)
	if left >= 1 {
		s.told = false
		f.log.Info("mended firewall rules that another program had changed", "where", s.String())
		return
	}
	s.notBy = now.Add(every)
	if !s.told {
		s.told = true
		f.log.Warn("another program undoes our firewall rules again and again", "where", s.String(), "mended now only every", every)
	}
}

// bucket holds burst tokens and gains one in each interval.
type bucket struct {
	spent float64
	last  time.Time
}

// spend takes one token and returns how many are left, below 1 if it should rather have waited.
func (b *bucket) spend(now time.Time, interval time.Duration) float64 {
	if !b.last.IsZero() {
		b.spent = max(0, b.spent-float64(now.Sub(b.last))/float64(interval))
	}
	b.last = now
	b.spent = min(b.spent+1, burst)
	return burst - b.spent
}
