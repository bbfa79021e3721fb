package daemon

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
	"flannel/pkg/underlay"
	"flannel/subnet"
)

// Retries come later and later, unless something else has caused the pass; a part may want a pass earlier.
func TestTimers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _, _ := newDaemon(t)
		d.Settings.CompareAll = time.Hour
		l := d.newLoop(&node{}, newInbox())
		failed := &pass{failed: failures{{partPaths, errors.New("no")}}}
		retried := func(p *pass) (took time.Duration) {
			began := time.Now()
			l.timers.recordResult(p)
			l.wait(t.Context(), l.timers.nextPass(p))
			if l.timers.startPass(p); !p.again || !p.retried || p.resync {
				t.Errorf("after %v: again %t, retried %t, resync %t", time.Since(began), p.again, p.retried, p.resync)
			}
			return time.Since(began)
		}
		var took time.Duration
		for range 12 {
			took += retried(failed)
		}
		// 0.1 + 0.2 + … + 12.8 + 4 × 15 seconds.
		if took < 80*time.Second || took > 90*time.Second {
			t.Errorf("12 tries took %v", took)
		}
		succeed := func() { l.timers.recordResult(&pass{}) }
		if succeed(); l.timers.nextPass(&pass{}) != l.timers.resync {
			t.Errorf("retries at %v though nothing failed", l.timers.nextPass(&pass{}))
		}
		if took := retried(&pass{refused: []subnet.Rejected{{Reason: "no"}}}); took != firstRetry {
			t.Errorf("the first retry after success comes after %v", took)
		}
		succeed()
		failed.retried = false
		for range 20 { // passes that something else called for
			l.timers.recordResult(failed)
			time.Sleep(time.Millisecond)
		}
		if took := retried(failed); took != firstRetry-20*time.Millisecond {
			t.Errorf("after many passes in a moment, the next try comes after %v", took)
		}
		succeed()
		wanted := &pass{}
		wanted.wakeAt(time.Now().Add(time.Minute))
		wanted.wakeAt(time.Now().Add(time.Second))
		wanted.wakeAt(time.Now().Add(time.Minute))
		l.wait(t.Context(), l.timers.nextPass(wanted))
		if l.timers.startPass(wanted); wanted.again || !time.Now().Equal(wanted.due) {
			t.Errorf("what a part has waited for is a retry: %t, at %v, want %v", wanted.again, time.Now(), wanted.due)
		}
		l.wait(t.Context(), l.timers.nextPass(&pass{}))
		for _, want := range []bool{true, false} {
			p := l.newPass()
			if l.timers.startPass(p); p.again != want || p.resync != want || p.retried {
				t.Errorf("at the resync: again %t, resync %t, retried %t", p.again, p.resync, p.retried)
			}
		}
	})
}

// A resync that fails while a retry is waited for does not make the pause longer.
func TestFailedResyncIsNoRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		timers := timers{time.Hour, time.Now(), reconcile.Backoff{First: firstRetry, Last: lastRetry}}
		p := &pass{failed: failures{{partPaths, errors.New("no")}}}
		timers.recordResult(p)
		if timers.startPass(p); !p.resync || !p.again || p.retried {
			t.Errorf("resync %t, again %t, retried %t", p.resync, p.again, p.retried)
		}
		timers.recordResult(p)
		if wait := time.Until(timers.nextPass(&pass{})); wait != firstRetry {
			t.Errorf("the retry is %v after the first failure, want %v", wait, firstRetry)
		}
	})
}

// slowKernel takes its time for the devices, and fails in the first passes.
type slowKernel struct {
	countedKernel
	fails   int           // how many passes
	takes   time.Duration // each of them
	ends    int           // the pass in which the loop ends
	changes bool          // something changes in each pass

	changed chan struct{}
	end     context.CancelFunc
	began   time.Time
	passes  []time.Duration // when they began
	resyncs int
}

func (k *slowKernel) Changes() <-chan struct{} { return k.changed }
func (k *slowKernel) QueueResync()             { k.resyncs++ }

func (k *slowKernel) Ensure(context.Context, []dataplane.Device) (dataplane.Links, error) {
	k.passes = append(k.passes, time.Since(k.began))
	if k.changes {
		reconcile.Notify(k.changed)
	}
	time.Sleep(k.takes)
	if len(k.passes) == k.ends {
		k.end()
	}
	if len(k.passes) <= k.fails {
		return nil, errors.New("no devices")
	}
	return dataplane.Links{}, nil
}

func (k *slowKernel) Apply(context.Context, dataplane.Links, dataplane.State) ([]dataplane.Refused, error) {
	return nil, nil
}

// chosenUnderlay counts how often it was chosen, and notifies of changes.
type chosenUnderlay struct {
	*fixedUnderlay
	times   int
	changes chan struct{}
}

func (u *chosenUnderlay) Changes() <-chan struct{} { return u.changes }

func (u *chosenUnderlay) Choose(v4, v6 bool, operator subnet.PublicIPs) (underlay.Link, []netip.Addr, error) {
	u.times++
	return u.fixedUnderlay.Choose(v4, v6, operator)
}

// runLoop has a node whose lease is published make passes until the kernel ends the loop.
func runLoop(t *testing.T, k *slowKernel) *chosenUnderlay {
	t.Helper()
	d, u, _ := newDaemon(t)
	_, l := startedNode(t, d)
	l.once(t, false) // asks for the lease to be published
	l.in.published = l.in.desired
	<-l.in.changed
	ctx, cancel := context.WithCancel(t.Context())
	chosen := &chosenUnderlay{fixedUnderlay: u}
	k.changed, k.end, k.began = make(chan struct{}, 1), cancel, time.Now()
	d.Dataplane, d.Underlay, d.Settings.CompareAll = k, chosen, time.Hour
	if err := d.newLoop(l.node, l.in).run(ctx); err != nil {
		t.Error(err)
	}
	return chosen
}

// The loop knows which passes are retries and which are resyncs: pauses get longer, both choose the underlay again, and a
// resync has the dataplane read everything.
func TestLoopRetriesAndResyncs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &slowKernel{fails: 5, ends: 7}
		u := runLoop(t, k)
		var want []time.Duration
		for _, tenths := range []time.Duration{0, 1, 3, 7, 15, 31, 36_000} {
			want = append(want, tenths*firstRetry)
		}
		if !slices.Equal(k.passes, want) || u.times != 6 || k.resyncs != 1 {
			t.Errorf("passes at %v, want %v; the underlay was chosen %d times, %d resyncs", k.passes, want, u.times, k.resyncs)
		}
	})
}

// While changes arrive all the time, the loop rests for as long as the last pass took, at most maxPause.
func TestLoopRestsBetweenPasses(t *testing.T) {
	for takes, rests := range map[time.Duration]time.Duration{time.Millisecond: time.Millisecond, time.Minute: maxPause} {
		synctest.Test(t, func(t *testing.T) {
			k := &slowKernel{takes: takes, ends: 3, changes: true}
			runLoop(t, k)
			if want := []time.Duration{0, takes + rests, 2 * (takes + rests)}; !slices.Equal(k.passes, want) {
				t.Errorf("passes that take %v are at %v, want %v", takes, k.passes, want)
			}
		})
	}
}

// wakingKernel and wakingFirewall notify of changes.
type wakingKernel struct {
	countedKernel
	changes chan struct{}
}

func (k wakingKernel) Changes() <-chan struct{} { return k.changes }

type wakingFirewall struct {
	noFirewall
	changes chan struct{}
}

func (f wakingFirewall) Changes() <-chan struct{} { return f.changes }

// Whatever a part waits for causes a pass at once.
func TestPartsWakeTheLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, u, _ := newDaemon(t)
		in, links, public := newInbox(), make(chan struct{}, 1), make(chan struct{}, 1)
		kernel, rules, file := make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{}, 1)
		d.Underlay, d.Manager = &chosenUnderlay{fixedUnderlay: u, changes: links}, &addressed{changed: public}
		d.Dataplane, d.Firewall, d.EnvFile = wakingKernel{changes: kernel}, wakingFirewall{changes: rules}, file
		l := d.newLoop(&node{}, in)
		for name, c := range map[string]chan struct{}{"inbox": in.changed, "underlay": links, "public IPs": public,
			"dataplane": kernel, "firewall": rules, "subnet file": file} {
			reconcile.Notify(c)
			began := time.Now()
			l.wait(t.Context(), began.Add(time.Hour))
			if took := time.Since(began); took > 0 || len(c) > 0 {
				t.Errorf("%s: the next pass is after %v", name, took)
			}
		}
	})
}

// foundFirewall is a firewall whose rules are as they were, until changed.
type foundFirewall struct {
	wakingFirewall
	changed bool
	checks  int
	takes   time.Duration // each of them
}

func (f *foundFirewall) Check() bool { f.checks++; time.Sleep(f.takes); return f.changed }

// The watchdog notices a check that hangs, and forgets it when it has ended.
func TestHangingCheckIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _, _ := newDaemon(t)
		rules := &foundFirewall{wakingFirewall: wakingFirewall{changes: make(chan struct{}, 1)}, takes: time.Hour}
		d.Firewall = rules
		l := d.newLoop(&node{}, newInbox())
		reconcile.Notify(rules.changes)
		go l.wait(t.Context(), time.Now().Add(10*time.Hour))
		for _, hangs := range []bool{true, false} {
			time.Sleep(rules.takes - time.Minute)
			if err := d.Board.Alive(); (err != nil) != hangs {
				t.Errorf("the check hangs: %t; alive: %v", hangs, err)
			}
		}
	})
}

// A check of the firewall's rules that finds no change causes no pass.
func TestUnchangedRulesCauseNoPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _, _ := newDaemon(t)
		rules := &foundFirewall{wakingFirewall: wakingFirewall{changes: make(chan struct{}, 1)}}
		d.Firewall = rules
		in := newInbox()
		l := d.newLoop(&node{}, in)
		wait := func() time.Duration {
			began := time.Now()
			l.wait(t.Context(), began.Add(time.Hour))
			return time.Since(began)
		}
		time.AfterFunc(time.Minute, func() { reconcile.Notify(rules.changes) })
		time.AfterFunc(2*time.Minute, func() { reconcile.Notify(in.changed) })
		if took := wait(); took != 2*time.Minute || rules.checks != 1 {
			t.Errorf("the next pass is after %v and %d checks", took, rules.checks)
		}
		rules.changed = true
		reconcile.Notify(rules.changes)
		if took := wait(); took > 0 {
			t.Errorf("after a change, the next pass is after %v", took)
		}
		rules.changed = false
		reconcile.Notify(rules.changes)
		if took := wait(); took != time.Hour {
			t.Errorf("without a change, the next pass is after %v", took)
		}
	})
}
