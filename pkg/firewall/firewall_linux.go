//go:build linux

package firewall

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/google/nftables"
)

// Options are what New needs.
type Options struct {
	Log      *slog.Logger
	Instance string // see package instance
	// Resync is how often the rules are looked at without a notification (--iptables-resync); 0 or less: never.
	Resync time.Duration
}

// place is somewhere in the kernel that can hold our rules.
type place interface {
	String() string
	// sync makes exactly want be there, and nothing of ours for nil; it returns how many chains it wrote or removed.
	sync(ctx context.Context, want []Chain) (int, error)
	// list says what of ours is there, for a person.
	list(ctx context.Context) ([]string, error)
	// digest is the same number twice only if what concerns us is the same, without starting a program; 0: cannot tell.
	digest() uint64
}

// spot is a place and what we know of it.
type spot struct {
	place
	six     bool  // of IPv6
	note    notes // the notifications that concern it
	want    []Chain
	check   bool   // to be looked at
	settled bool   // it was in step since want was set: whatever differs now was done by another hand
	clean   uint64 // its digest when it was as wanted; 0: look closer
	err     error
	pause   time.Duration // between two tries after an error
	notBy   time.Time     // not looked at before
	mends   bucket
	told    bool // that another program works against us
}

// Firewall keeps the rules of the Config that it was last given. One goroutine calls Apply.
type Firewall struct {
	log    *slog.Logger
	owner  instance
	resync time.Duration
	socket *os.File // notifications; nil where the kernel has no nf_tables
	done   sync.WaitGroup

	applied bool
	config  Config
	variant variant // of the IPTables writer
	spots   []*spot
	tick    time.Time // when the next resync is due
	plain   bool      // --random-fully was refused

	wake  chan struct{}
	timer *time.Timer
	inbox inbox
}

// New subscribes to notifications, in the network namespace of the calling thread; Apply has to be called in the same
// one. It changes nothing.
func New(o Options) (*Firewall, error) {
	f := &Firewall{log: o.Log, owner: instance(o.Instance), resync: o.Resync, wake: make(chan struct{}, 1)}
	f.inbox.wake = f.signal
	f.timer = time.AfterFunc(time.Hour, f.signal)
	f.timer.Stop()
	socket, err := listen()
	if err != nil {
		f.log.Info("no notifications about firewall rules, they are looked at only now and then", "err", err, "every", o.Resync)
		return f, nil
	}
	f.socket = socket
	f.done.Go(f.watch)
	return f, nil
}

// Changes receives a value when Apply should be called: something of ours may have changed, or is to be looked at.
func (f *Firewall) Changes() <-chan struct{} { return f.wake }

// signal never blocks: one value waiting says all there is to say.
func (f *Firewall) signal() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// Close ends the watching. The rules stay.
func (f *Firewall) Close() error {
	f.timer.Stop()
	f.inbox.stop()
	if f.socket == nil {
		return nil
	}
	err := f.socket.Close()
	f.done.Wait()
	return err
}

// Apply brings the rules of c into the kernel and takes away all others of ours, by whichever writer. It returns how
// many chains it wrote or removed. New rules come first, so that no packet goes without. What is known to be in step
// is not looked at: Apply is cheap then, and starts no program. After an error it tries again with growing pauses,
// tells the old error in between, and reports on Changes when it wants to be called.
func (f *Firewall) Apply(ctx context.Context, c Config) (changed int, err error) {
	now := time.Now()
	if !f.applied || c != f.config {
		if err := f.plan(ctx, c); err != nil {
			return 0, err
		}
	}
	f.due(now)
	var errs []error
	failed := map[bool]bool{} // by spot.six
	for _, wanted := range []bool{true, false} {
		for _, s := range f.spots {
			// A family's old rules serve until its new ones are there.
			if len(s.want) > 0 != wanted || !wanted && failed[s.six] {
				continue
			}
			n, err := f.look(ctx, s, now)
			changed += n
			if err != nil {
				failed[s.six] = true
				errs = append(errs, fmt.Errorf("%s: %w", s.place, err))
			}
		}
	}
	f.sleep(now)
	return changed, errors.Join(errs...)
}

// plan lays out what shall be where. Every spot is looked at once after it: what a former run left is found here.
func (f *Firewall) plan(ctx context.Context, c Config) error {
	t, err := findTools(ctx)
	if err != nil {
		f.timer.Reset(maxPause)
		return err
	}
	if c.Writer == IPTables && (c.Masquerade || c.Forward) {
		v, err := t.choose(ctx)
		if err != nil {
			f.timer.Reset(maxPause) // it may be installed meanwhile
			return err
		}
		if v != f.variant {
			f.log.Info("firewall rules go through iptables", "variant", v)
		}
		random, err := t.randomFully(ctx, v)
		if err != nil {
			f.timer.Reset(maxPause)
			return err
		}
		f.variant, f.plain = v, f.plain || !random
	}
	f.spots = allSpots(t, f.owner, f.log)
	var active notes
	for _, s := range f.spots {
		s.check = true
		if f.holds(c.Writer, s.place) {
			family := c.V4
			if s.six {
				family = c.V6
			}
			s.want = f.owner.name(Rules(c, family))
		}
		if f.plain {
			s.want = withoutRandom(s.want)
		}
		if len(s.want) > 0 {
			active |= s.note
		}
	}
	f.applied, f.config = true, c
	f.inbox.listenTo(active)
	return nil
}

// holds tells whether writer w keeps its rules at p.
func (f *Firewall) holds(w Writer, p place) bool {
	switch p := p.(type) {
	case nftPlace:
		return w == NFTables
	case *iptablesPlace:
		return w == IPTables && p.variant == f.variant
	}
	return false
}

// allSpots are all places where rules of ours can be.
func allSpots(t tools, owner instance, log *slog.Logger) []*spot {
	spots := []*spot{
		{place: nftPlace{nftables.TableFamilyIPv4, owner}, note: noteNFT4},
		{place: nftPlace{nftables.TableFamilyIPv6, owner}, note: noteNFT6, six: true},
	}
	for _, v := range []variant{variantNFT, variantLegacy} {
		suffix, ok := t.suffix[v]
		if !ok {
			continue
		}
		four := &spot{place: &iptablesPlace{owner: owner, command: "iptables", suffix: suffix, variant: v, log: log}}
		six := &spot{place: &iptablesPlace{owner: owner, command: "ip6tables", suffix: suffix, variant: v, log: log}, six: true}
		if v == variantNFT {
			four.note, six.note = noteIPTables4, noteIPTables6
		}
		spots = append(spots, four, six)
	}
	return spots
}

// due marks what notifications and the clock want looked at.
func (f *Firewall) due(now time.Time) {
	seen := f.inbox.take()
	// Spots without rules are not polled: nobody but us has a reason to write there.
	tick := f.resync > 0 && !now.Before(f.tick)
	if tick {
		f.tick = now.Add(f.resync)
	}
	for _, s := range f.spots {
		if len(s.want) > 0 && (tick || s.note&seen != 0) {
			s.check = true
		}
	}
}

// sleep sets the timer to the next moment at which something is to be looked at.
func (f *Firewall) sleep(now time.Time) {
	var next time.Time
	for _, s := range f.spots {
		at := s.notBy
		if !s.check || !at.After(now) {
			if at = f.tick; len(s.want) == 0 || f.resync <= 0 {
				continue
			}
		}
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	if next.IsZero() {
		f.timer.Stop()
		return
	}
	f.timer.Reset(max(next.Sub(now), time.Millisecond))
}

// Cleanup removes everything of ours by whichever writer, and nothing else, and returns what it was, one line each.
// A dry run only lists. An error about one place stops no other.
func Cleanup(ctx context.Context, o Options, dryRun bool) (removed []string, err error) {
	t, err := findTools(ctx)
	errs := []error{err}
	// Listed and removed one after the other: what is reported is what was there when it was removed.
	for _, s := range allSpots(t, instance(o.Instance), o.Log) {
		found, err := s.list(ctx)
		if err == nil && !dryRun {
			_, err = s.sync(ctx, nil)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s.place, err))
			continue
		}
		removed = append(removed, found...)
	}
	return removed, errors.Join(errs...)
}
