package main

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"time"

	"flannel/pkg/reconcile"
	"flannel/pkg/underlay"
	"flannel/subnet"
)

// machineUnderlay implements daemon.Underlay with this machine's interfaces. Only the
// daemon's loop, or one command, calls Choose.
type machineUnderlay struct {
	options underlay.Options
	read    func(underlay.Options) (underlay.Snapshot, error)
	chooser underlay.Chooser // remembers the earlier choices, which it prefers
	changes <-chan struct{}
	log     *slog.Logger
	logged  string // the decision that was logged last
}

// newUnderlay watches the interfaces until ctx ends.
func newUnderlay(ctx context.Context, o underlay.Options, log *slog.Logger) (*machineUnderlay, error) {
	changes := make(chan struct{}, 1)
	if err := watchUnderlay(ctx, func() { reconcile.Notify(changes) }); err != nil {
		return nil, err
	}
	return &machineUnderlay{options: o, read: readUnderlay, changes: coalesce(ctx, changes), log: log}, nil
}

// coalesceDelay is the pause between the first of a burst of changes and the
// notification. When an interface comes up, for example, messages about its
// link, addresses and routes follow each other, and one Snapshot serves them all.
const coalesceDelay = 50 * time.Millisecond

// coalesce returns a channel that receives one value for all changes within coalesceDelay after
// the first, until ctx ends. It is never closed.
func coalesce(ctx context.Context, changes <-chan struct{}) <-chan struct{} {
	changed := make(chan struct{}, 1)
	r := reconcile.Runner{
		Wakes: []<-chan struct{}{changes},
		Quiet: coalesceDelay,
		Later: true,
		Work:  func(context.Context) (time.Duration, error) { reconcile.Notify(changed); return 0, nil },
	}
	go r.Run(ctx)
	return changed
}

// anyUnderlay reads the interfaces without the user's flags, for commands that choose none of them.
func anyUnderlay() (underlay.Snapshot, error) { return readUnderlay(underlay.Options{}) }

// Changes implements daemon.Underlay.
func (u *machineUnderlay) Changes() <-chan struct{} { return u.changes }

// Choose implements daemon.Underlay. A snapshot that could not be read says nothing
// about the interfaces, hence reconcile.Unknown.
func (u *machineUnderlay) Choose(v4, v6 bool, operator subnet.PublicIPs) (underlay.Link, []netip.Addr, error) {
	o := u.options
	if operator.V4.IsValid() {
		o.PublicV4 = operator.V4
	}
	if operator.V6.IsValid() {
		o.PublicV6 = operator.V6
	}
	snapshot, err := u.read(o)
	if err != nil {
		return underlay.Link{}, nil, reconcile.Unknown(err)
	}
	d, err := u.chooser.Choose(time.Now(), snapshot, o, v4, v6)
	if err == nil {
		u.logDecision(d)
	}
	return d.Link, snapshot.Addrs(), err
}

// logDecision logs a choice at the debug level, unless it is the same as before: there
// is one whenever an address of the node changes, as for each pod.
func (u *machineUnderlay) logDecision(d underlay.Decision) {
	if !u.log.Enabled(context.Background(), slog.LevelDebug) {
		return
	}
	link, rejected := d.Link.String(), strings.Join(d.Rejected, "; ")
	text := strings.Join([]string{link, d.Why, rejected}, "\n")
	if text == u.logged {
		return
	}
	u.logged = text
	u.log.Debug("underlay chosen", "interface", link, "why", d.Why, "rejected", rejected, "untried", d.Untried)
}
