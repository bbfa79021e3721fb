package daemon

import (
	"context"
	"maps"
	"sync"
	"time"

	"flannel/pkg/reconcile"
	"flannel/subnet"
)

// inbox passes data between the goroutines of the daemon. The lease manager
// puts the network configuration and the set of peers into it, always replacing
// the value before, and the loop takes them. The loop puts this node's lease
// into it, and the publisher takes that. Each channel has room for one
// notification, so that notify never blocks, and several changes cause one
// pass.
type inbox struct {
	changed chan struct{} // notifies the loop
	publish chan struct{} // notifies the publisher

	mu           sync.Mutex
	config       []byte // nil: none was received
	configUnread bool   // the loop has not taken config
	set          subnet.Set
	setChanges   reconcile.PendingChanges[subnet.Lease] // the differences of set to the one that the loop has taken
	complete     bool                                   // set was received
	markTimes    markTimes                              // when the marks (marks.go) of the leases in set changed
	desired      *subnet.Lease                          // to publish; nil: none
	published    *subnet.Lease                          // as the store has it; nil: unknown
	publishErr   error                                  // of the last attempt
}

// newInbox returns an empty inbox. It serves all memberships of a Run; see reset.
func newInbox() *inbox {
	return &inbox{changed: make(chan struct{}, 1), publish: make(chan struct{}, 1), markTimes: markTimes{}}
}

// setConfig receives a network configuration. The goroutine of Manager.WatchConfig
// calls it.
func (in *inbox) setConfig(raw []byte) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.config, in.configUnread = raw, true
	reconcile.Notify(in.changed)
}

// hasConfig reports whether a configuration was received.
func (in *inbox) hasConfig() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.config != nil
}

// takeConfig returns the latest configuration, and whether it was received
// since the last call.
func (in *inbox) takeConfig() (raw []byte, unread bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	unread, in.configUnread = in.configUnread, false
	return in.config, unread
}

// hasUnreadConfig reports whether a configuration was received since the last takeConfig.
func (in *inbox) hasUnreadConfig() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.configUnread
}

// rereadConfig makes the latest configuration unread.
func (in *inbox) rereadConfig() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.configUnread = true
}

// reset prepares for joining again: it keeps the configuration, as unread, and
// drops what belongs to the former lease. Daemon.Run calls it between two
// memberships, when all goroutines that call setPeers or setPublished have ended.
func (in *inbox) reset() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.configUnread = in.config != nil
	in.set, in.setChanges, in.complete, in.markTimes = subnet.Set{}, nil, false, markTimes{}
	in.desired, in.published, in.publishErr = nil, nil, nil
}

// setPeers receives a complete set of peers. The goroutine of Manager.Watch
// calls it. The changes of sets that the loop has not taken yet add up: a peer
// that was added and deleted again in the meantime leaves none.
func (in *inbox) setPeers(s subnet.Set) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.complete { // the first set is read as a whole
		for _, c := range s.Changes {
			in.setChanges.Add(c.Either().Name, c)
			in.markTimes.observe(c, time.Now())
		}
	}
	s.Changes = nil // setChanges has them until the loop takes them
	in.set, in.complete = s, true
	reconcile.Notify(in.changed)
}

// marked returns the latest set, and when this node saw the rollout marks of its
// leases change; complete is false as long as no set was received.
func (in *inbox) marked() (s subnet.Set, seen markTimes, complete bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.set, maps.Clone(in.markTimes), in.complete
}

// hasPublished reports whether the store has l.
func (in *inbox) hasPublished(l *subnet.Lease) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.published != nil && in.published.Equal(l)
}

// takePeers returns the latest set; complete is false as long as none was
// received. The Changes of the set are the differences to the set that takePeers
// returned last, even if several sets were received in between. Those of the first
// set that takePeers returns mean nothing.
func (in *inbox) takePeers() (s subnet.Set, complete bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	s = in.set
	s.Changes = in.setChanges.Take(subnet.Compare)
	return s, in.complete
}

// requestPublish has the publisher write l to the store if it is a new value.
// It returns whether the store has l already, and the error of the last attempt, perhaps
// with another lease; nil: it succeeded, or there was none.
func (in *inbox) requestPublish(l subnet.Lease) (published bool, err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.desired == nil || !in.desired.Equal(&l) {
		in.desired = &l
		reconcile.Notify(in.publish)
	}
	return in.published != nil && in.published.Equal(&l), in.publishErr
}

// republish makes the next requestPublish have its lease written, even if the store has
// it. The part underlay calls it when the public addresses that an operator has set in the
// store changed: the store publishes them in place of the lease's (subnet.PublicIPs), but
// only with a Publish, which the part publish requests later in the same pass.
func (in *inbox) republish() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.desired, in.published = nil, nil
}

// unpublished returns the lease that the store should have and has not; nil: none.
func (in *inbox) unpublished() *subnet.Lease {
	in.mu.Lock()
	defer in.mu.Unlock()
	// desired is nil if the notification is from before a reset.
	if in.desired == nil || in.published != nil && in.published.Equal(in.desired) {
		return nil
	}
	return in.desired
}

// setPublished records the result of publishing l, and wakes the loop.
func (in *inbox) setPublished(l *subnet.Lease, err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.published, in.publishErr = nil, err
	if err == nil && in.desired == l { // otherwise another one was requested meanwhile, or the same once more, and is written next
		in.published = l
	}
	reconcile.Notify(in.changed)
}

// publish writes this node's lease to the store whenever the loop requests it.
// It runs in a goroutine of its own: Publish may block for hours while the
// store is unavailable, and the loop must keep repairing the network meanwhile.
// Work runs when in.publish receives: another lease was requested. It runs again after a
// permanent error, with growing pauses, since the store may take the lease later; passes
// fail with that error meanwhile. During an outage, Publish itself paces its attempts.
func (d *Daemon) publish(ctx context.Context, in *inbox) error {
	retry := reconcile.Backoff{First: firstRepublish, Last: lastRepublish, Jitter: true}
	r := reconcile.Runner{News: []<-chan struct{}{in.publish}, Later: true, Retry: retry, Work: func(ctx context.Context) (time.Duration, error) {
		l := in.unpublished()
		if l == nil {
			return 0, nil
		}
		err := d.Manager.Publish(ctx, *l)
		if ctx.Err() != nil { // the membership ends, and nobody takes the result
			return 0, err
		}
		if err == nil {
			d.Log.Info("published this node's lease", "lease", l)
		}
		in.setPublished(l, err)
		return 0, err
	}}
	r.Run(ctx)
	return nil
}

// The pauses after a permanent error of Publish. All nodes may have it at the same time.
const (
	firstRepublish = time.Second
	lastRepublish  = time.Minute
)
