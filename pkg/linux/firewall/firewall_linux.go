// Package firewall keeps the node's masquerade and forward rules in the kernel: the list of package firewall beside
// package linux. One of two writers translates the list for the kernel:
//
//   - IPTables uses the nft or the legacy variant of iptables, whichever the host uses. It reads chain by chain (see
//     readOnce), compares parsed rules, and replaces differing chains in one iptables-restore transaction.
//   - NFTables has tables of its own, flannel-ipv4 and flannel-ipv6. It reads and writes them by netlink and starts no
//     program.
//
// The kernel treats the two differently in one point: an ACCEPT in our FLANNEL-FWD ends iptables' FORWARD chain, while
// an accept in an nftables chain does not override a drop in another table.
//
// Because of that ACCEPT, our jumps come after the rules of others. They are appended to FORWARD and POSTROUTING, and
// an existing jump is never moved, because network policy engines, kube-proxy and administrators insert rules before it
// and rely on them. There is one exception: if FORWARD ends with a DROP or REJECT of every packet, a new jump is
// inserted right before that rule. A jump that is missing, duplicated or has other arguments is repaired (planJump).
//
// Cost: each resync asks the kernel for nf_tables' generation with one request. Only if the generation or, in the legacy
// variant, the whole table changed, a few system calls show whether our chains and the jumps to them did. Only if they did,
// there is a pass, in which the chains are read, and iptables -S is started for those of our own chains that changed.
package firewall

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/nftables"
	"golang.org/x/time/rate"

	"flannel/pkg/firewall"
	"flannel/pkg/linux/rtnetlink"
	"flannel/pkg/reconcile"
)

// instance is the name of a flanneld, if several run on one host (see cmd/flanneld/instance.go). "" is the default instance,
// whose chains and tables have flannel's names.
type instance string

// suffix is behind the names of flannel's chains and tables.
func (i instance) suffix() string {
	if i == "" {
		return ""
	}
	return "-" + string(i)
}

// chains returns all chains that this instance can own in one family, without rules.
func (i instance) chains() []firewall.Chain { return i.addSuffix(firewall.Chains()) }

// addSuffix appends this instance's suffix to the chains' names. In nftables the table has the suffix instead.
func (i instance) addSuffix(chains []firewall.Chain) []firewall.Chain {
	for j := range chains {
		chains[j].Name += i.suffix()
	}
	return chains
}

// place is one of the locations in the kernel that can hold our rules: an nftables table of ours (nftPlace), or a table of
// iptables in one variant (iptablesPlace), each for one address family. Firewall calls its methods on the loop's goroutine.
type place interface {
	String() string
	// sync makes our chains there equal to want, or removes them if want is nil. It returns how many chains it wrote or
	// removed; with an error, at least so many. The error is errRefused if the kernel or iptables rejects the rules, so that
	// syncPlace tries fewer.
	sync(ctx context.Context, want []firewall.Chain) (int, error)
	// list describes for a person what is ours there, one line for each chain, jump or table.
	list(ctx context.Context) ([]string, error)
	// digest returns a hash of what concerns us there, without starting a program. If two calls return the same hash,
	// nothing changed between them. 0 means unknown, so that the rules are read.
	digest() uint64
}

// placeState is a place, the rules desired in it, and the state of reconciling it. See the table at reconcile.
type placeState struct {
	place
	v6           bool              // its address family
	topics       topics            // of the kernel's notifications about the place; 0: there are none, in the legacy variant
	want         []firewall.Chain  // nil: nothing of ours
	needsCheck   bool              // reconcile has to look at it
	synced       bool              // a check has succeeded since want was set; a later difference was made by others
	syncedDigest uint64            // digest of the place when it was last found equal to want; 0: unknown
	generation   uint32            // of nf_tables when the digest was last found to be syncedDigest; 0: unknown
	retry        reconcile.Backoff // of checks that fail
	throttled    time.Time         // no check before this time, because others' changes were repaired too often; or zero
	repairs      *rate.Limiter     // has a token for each repair that may be made at once; see recordChange
	warned       bool              // that another program undoes our rules again and again
}

// Firewall keeps the rules of the Config last passed to Apply. The daemon's loop calls Apply in each pass, and Check when
// Changes has received, never both at once. The goroutines of listen and the timer share only subscribed, pending and
// changes with them.
type Firewall struct {
	log    *slog.Logger
	owner  instance      // its name is in the names of our chains and tables
	resync time.Duration // between checks without a notification; 0 or less: there are none
	report func()        // is called after a repair; may be nil
	// listener receives notifications; nil if New could not subscribe, as where the kernel has no nf_tables.
	listener *rtnetlink.Listener

	applied    bool            // planPlaces has succeeded for config, so that places are those of config
	config     firewall.Config // last passed to planPlaces with success
	variant    variant         // of iptables; "" before it was needed
	unmarked   *tools          // that variant was chosen without kubelet's chains, which may come; nil: with them, or there is no choice
	places     []*placeState   // all that can hold rules of ours
	nextResync time.Time       // zero: with the next Check or Apply
	omitted    omitted         // what this kernel or iptables does not support, for as long as the daemon runs

	changes chan struct{} // capacity 1, see Changes
	timer   *time.Timer   // for the next resync or retry
	// subscribed are the topics of the Config; pending are those of them that notifications were about since Apply or Check
	// was last called.
	subscribed, pending atomic.Uint32
	stop                context.CancelFunc // ends the goroutine of listen
}

// New subscribes to notifications in the network namespace of the calling thread. Apply must be called in the same
// namespace. New changes no rules.
func New(o firewall.Options) (*Firewall, error) {
	f := &Firewall{log: o.Log, owner: instance(o.Instance), resync: o.Resync, report: o.Repaired, changes: make(chan struct{}, 1)}
	var ctx context.Context
	ctx, f.stop = context.WithCancel(context.Background())
	f.timer = time.AfterFunc(time.Hour, f.notify)
	f.timer.Stop() // armTimer sets it
	var err error
	if f.listener, err = f.listen(ctx); err != nil {
		f.log.Info("cannot subscribe to firewall notifications, relying on the resync", "err", err, "every", o.Resync)
	}
	return f, nil
}

// Changes receives a value when Check should be called: our rules may have changed, or a resync or retry is due.
func (f *Firewall) Changes() <-chan struct{} { return f.changes }

// Check looks at those places that notifications or the resync concern, and returns whether Apply must be called: a place
// has changed, or a retry is due. If not, all is as after the last Apply. Check must not be called at the same time as
// Apply.
func (f *Firewall) Check() (changed bool) {
	now := time.Now()
	f.queueChecks(now)
	changed = !f.applied
	generation := sync.OnceValue(rtnetlink.TablesGeneration) // one request for all places, if any needs it
	for _, s := range f.places {
		if !s.due(now) {
			continue // nothing concerns it, or it is in a pause, to whose end the timer is set
		}
		s.needsCheck = !s.unchanged(generation)
		changed = changed || s.needsCheck
	}
	f.armTimer(now)
	return changed
}

// notify makes Changes receive. The timer and the runner of listen call it, each on its goroutine.
func (f *Firewall) notify() { reconcile.Notify(f.changes) }

// Close unsubscribes from notifications. The rules stay.
func (f *Firewall) Close() error {
	f.timer.Stop()
	f.stop()
	if f.listener == nil {
		return nil
	}
	return f.listener.Close()
}

// Apply writes the rules of c into the kernel and removes all other rules of ours, whichever writer made them. It
// returns how many chains it wrote or removed. It writes before it removes, so that no packet passes without rules.
//
// Places that no notification, resync or new Config concerns are skipped, therefore a call in steady state is cheap
// and starts no program. After an error at a place, Apply retries that place with a backoff. A call before the backoff
// ends returns the previous error, so that it stays the problem of the daemon. Changes receives a value when the next
// call is due.
func (f *Firewall) Apply(ctx context.Context, c firewall.Config) (changed int, err error) {
	now := time.Now()
	moved := f.followMark()
	if !f.applied || c != f.config || moved {
		if err := f.planPlaces(ctx, c); err != nil {
			f.timer.Reset(lastRetry) // iptables may be installed later; applied is false, so Check asks for this again
			return 0, err
		}
	}
	f.queueChecks(now)
	var errs []error
	failed := map[bool]bool{}                    // families with an error, by placeState.v6
	for _, wanted := range []bool{true, false} { // first the places that are to have rules, then those to be emptied
		for _, s := range f.places {
			// If the new rules of a family could not be written, its old rules stay.
			if len(s.want) > 0 != wanted || !wanted && failed[s.v6] {
				continue
			}
			n, err := f.reconcile(ctx, s, now)
			changed += n
			if err != nil {
				failed[s.v6] = true
				errs = append(errs, fmt.Errorf("%s: %w", s.place, err))
			}
		}
	}
	f.armTimer(now)
	return changed, errors.Join(errs...)
}

// planPlaces makes f.places anew for c: which rules are desired in each place, for which it finds out which programs are
// installed. It marks all places for a check, also those with no desired rules: a previous run may have left rules there.
// After an error, f.applied is false, and f.places are those of before.
func (f *Firewall) planPlaces(ctx context.Context, c firewall.Config) error {
	f.applied, f.unmarked = false, nil // until all are marked
	t, err := findTools(ctx)
	if err != nil {
		return err
	}
	if c.Writer == firewall.IPTables && (c.Masquerade || c.Forward) {
		v, marked, err := t.chooseVariant()
		if err != nil {
			return err
		}
		if !marked && len(t.suffix) > 1 {
			f.unmarked = &t
		}
		if v != f.variant {
			f.log.Info("using iptables for firewall rules", "variant", v)
		}
		random, err := t.supportsRandomFully(ctx, v)
		if err != nil {
			return err
		}
		f.variant, f.omitted.random = v, f.omitted.random || !random // the kernel may have refused it before
	}
	// Other errors of remaining do not matter: this is only a warning.
	if e, ok := errors.AsType[*remainError](remaining(t, f.owner)); ok {
		f.log.Warn("firewall rules of an earlier run remain", "cause", causeRulesRemain, "chains", e.Chains, "missing", e.Missing, "reason", e)
	}
	f.places = allPlaces(t, f.owner)
	var active topics
	for _, s := range f.places {
		s.needsCheck, s.retry = true, reconcile.Backoff{First: firstRetry, Last: lastRetry}
		s.repairs = rate.NewLimiter(rate.Every(f.repairEvery()), repairBurst)
		if f.usesPlace(c.Writer, s.place) {
			family := c.V4
			if s.v6 {
				family = c.V6
			}
			s.want = f.owner.addSuffix(firewall.Rules(c, family))
			if p, ok := s.place.(*iptablesPlace); ok {
				s.want = inTable(s.want, p.table) // an nftPlace holds all chains
			}
		}
		s.want = f.omitted.from(s.want)
		if len(s.want) > 0 {
			active |= s.topics
		}
	}
	f.applied, f.config = true, c
	f.subscribed.Store(uint32(active))
	return nil
}

// followMark looks for kubelet's mark if the variant was chosen without one, such as on a node where kubelet started
// later, and reports whether the mark is in the other variant. As long as there is no mark, each Apply looks, which
// starts no program. The first mark ends that.
func (f *Firewall) followMark() (moved bool) {
	if f.unmarked == nil {
		return false
	}
	v, marked, err := f.unmarked.chooseVariant()
	if err != nil || !marked {
		return false
	}
	f.unmarked = nil
	return v != f.variant
}

// usesPlace reports whether writer w keeps its rules at p.
func (f *Firewall) usesPlace(w firewall.Writer, p place) bool {
	switch p := p.(type) {
	case nftPlace:
		return w == firewall.NFTables
	case *iptablesPlace:
		return w == firewall.IPTables && p.variant == f.variant
	}
	return false
}

// causeRulesRemain is a cause in the log.
const causeRulesRemain = "iptables-rules-remain"

// allPlaces returns all places that can hold rules of ours, with an unknown state.
func allPlaces(t tools, owner instance) []*placeState {
	places := []*placeState{
		{place: nftPlace{nftables.TableFamilyIPv4, owner}, topics: topicNFT4},
		{place: nftPlace{nftables.TableFamilyIPv6, owner}, topics: topicNFT6, v6: true},
	}
	for _, v := range []variant{variantNFT, variantLegacy} {
		suffix, ok := t.suffix[v]
		if !ok {
			continue
		}
		var topics4, topics6 topics
		if v == variantNFT {
			topics4, topics6 = topicIPTables4, topicIPTables6
		}
		for _, c := range firewall.Chains() { // each has a table of its own
			places = append(places,
				&placeState{place: newIPTablesPlace(owner, "iptables", suffix, v, c.Table), topics: topics4},
				&placeState{place: newIPTablesPlace(owner, "ip6tables", suffix, v, c.Table), topics: topics6, v6: true})
		}
	}
	return places
}

// queueChecks marks the places that notifications or the resync concern.
func (f *Firewall) queueChecks(now time.Time) {
	notified := topics(f.pending.Swap(0))
	// Places with no desired rules are not polled: no other program has a reason to write our chains there.
	resync := f.resync > 0 && !now.Before(f.nextResync)
	if resync {
		f.nextResync = reconcile.OnBeat(f.resync)
	}
	for _, s := range f.places {
		if len(s.want) > 0 && (resync || s.topics&notified != 0) {
			s.needsCheck = true
		}
		if s.topics&notified != 0 {
			s.generation = 0 // the kernel may have changed it before others saw the change
		}
	}
}

// armTimer sets the timer to the earliest time at which a place needs a look: the end of its pause after an error or of its
// throttling, else the next resync. Without any, it stops the timer.
func (f *Firewall) armTimer(now time.Time) {
	var next time.Time
	for _, s := range f.places {
		at := s.retry.Next()
		if at.Before(s.throttled) {
			at = s.throttled
		}
		switch {
		case s.needsCheck && at.After(now): // at the end of its pause
		case len(s.want) > 0 && f.resync > 0:
			at = f.nextResync
		default: // nothing is wanted there
			continue
		}
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	if next.IsZero() {
		f.timer.Stop()
		return
	}
	f.timer.Reset(max(time.Until(next), time.Millisecond))
}

// Cleanup removes all rules of ours, whichever writer made them, and returns what it removed, one line each. A dry run
// only lists. After an error at one place it continues with the others.
func Cleanup(ctx context.Context, o firewall.Options, dryRun bool) (removed []string, err error) {
	t, err := findTools(ctx)
	errs := []error{err}
	// Each place is listed right before it is cleaned, so that the report matches what was removed.
	for _, s := range allPlaces(t, instance(o.Instance)) {
		found, err := s.list(ctx)
		if err == nil && !dryRun {
			_, err = s.sync(ctx, nil) // nil: nothing is wanted
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s.place, err))
			continue
		}
		removed = append(removed, found...)
	}
	return removed, errors.Join(append(errs, remaining(t, instance(o.Instance)))...)
}
