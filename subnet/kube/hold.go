package kube

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"flannel/pkg/reconcile"
	"flannel/subnet"
)

// Hold implements subnet.Manager. It watches our Node and restores our annotations when someone else changes them: one
// goroutine observes, and another one restores. The states are in the table of ownNode (ownnode.go).
func (m *Manager) Hold(ctx context.Context) error {
	m.mu.Lock()
	own := m.own
	m.holding = own != nil // until Hold ends, PublicIPs returns what Hold keeps up to date, and does not read the Node
	m.mu.Unlock()
	if own == nil {
		return errors.New("hold: no subnet was acquired")
	}
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.holding = false
	}()
	ctx, cancel := context.WithCancel(ctx)
	restorerDone := make(chan struct{}) // Hold must not return before, since the next Acquire and Hold use m.restore, too
	go func() {
		defer close(restorerDone)
		// It calls Work at once, then when m.restore receives or the time that Work returned is over.
		restorer := reconcile.Runner{News: []<-chan struct{}{m.restore}, Work: func(ctx context.Context) (time.Duration, error) {
			m.mu.Lock()
			next := m.useOperators(own)
			m.mu.Unlock()
			restore := m.restoreIfDue(ctx, own)
			if next == 0 || restore > 0 && restore < next {
				next = restore
			}
			return next, nil
		}}
		restorer.Run(ctx)
	}()
	observe := func(_ context.Context, changes []change) error {
		defer m.passOnMissing()                           // after observeOwn, which holds m.mu
		return m.observeOwn(own, changes[len(changes)-1]) // all are of our Node: the last one counts
	}
	// follow returns nil when ctx ends, and else the error of observe.
	err := m.follow(ctx, feed{activity: "watch this node's Node", only: m.ownName(), handle: observe})
	cancel() // after ErrMoved
	<-restorerDone
	return err
}

// missingError is why other nodes cannot know this node: subnet.Set.OwnMissing, which the daemon reports as the error of a
// pass.
type missingError struct{ text, cause string }

func (e *missingError) Error() string { return e.text }

// Cause is the value of the attribute cause in the log.
func (e *missingError) Cause() string { return e.cause }

// missing returns a missingError if our Node does not exist or has no podCIDR. m.mu must be held.
func (m *Manager) missing() error {
	switch name := m.name; {
	case m.own == nil: // before Acquire
		return nil
	case m.own.node == nil:
		return &missingError{"Node " + name + " was deleted, so that other nodes do not know this one; restart kubelet, which registers it, or stop flanneld", causeNoNode}
	case len(m.own.node.CIDRs) == 0:
		return &missingError{"Node " + name + " has no podCIDR, so that other nodes do not know this one; kube-controller-manager assigns one with --allocate-node-cidrs", causeNoPodCIDR}
	}
	return nil
}

// passOnMissing has the next set of peers say whether our Node is missing. Hold calls it after each change of our Node,
// and Watch when its set begins, on another goroutine. m.mu must not be held, because SetOwnMissing hands over the set.
func (m *Manager) passOnMissing() {
	m.passing.Lock() // from looking to passing on, so that what was looked at last is passed on last
	defer m.passing.Unlock()
	m.mu.Lock()
	why := m.missing()
	m.mu.Unlock()
	if set := m.watched.Peers(); set != nil { // nil before Watch, which then calls this function
		set.SetOwnMissing(why)
	}
}

// observeOwn records a change of our Node in own, logs what it means, and has restoreIfDue check the annotations. It
// returns ErrMoved if the Node has another podCIDR, which ends Hold. It runs on the goroutine of Hold.
func (m *Manager) observeOwn(own *ownNode, observed change) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := own.node
	if observed.replaced {
		own.node = nil // resourceVersions of the former store must not make observe ignore this one
	}
	if observed.node == nil { // it does not exist
		own.observe(nil)
		if before != nil {
			m.log.Warn("this node's Node was deleted; keeping the network as it is until the Node is recreated",
				"cause", causeNoNode, "node", observed.name)
		}
		return nil
	}
	recreated := before == nil || before.UID != observed.node.UID
	if len(observed.node.CIDRs) == 0 {
		if recreated {
			m.log.Warn("this node's Node was recreated and has no podCIDR yet; keeping the network as it is",
				"cause", causeNoPodCIDR, "node", observed.name)
		}
		own.observe(observed.node)
		return nil
	}
	v4, v6, err := subnetsOf(observed.node.CIDRs)
	// Families of the Node that this node does not use do not matter: their own.v4 or own.v6 is zero.
	if err != nil || own.v4.IsValid() && v4 != own.v4 || own.v6.IsValid() && v6 != own.v6 {
		cidrs := strings.Join(observed.node.CIDRs, ", ")
		return fmt.Errorf("podCIDR of node %s is now %s: %w", observed.name, cidrs, subnet.ErrMoved)
	}
	own.observe(observed.node)
	m.useOperators(own) // if a pause is to pass first, the restorer calls it again
	switch {
	case recreated || len(before.CIDRs) == 0: // before had no podCIDR: recreated, or of a rewound store
		m.log.Info("this node's Node has the same podCIDR again", "node", observed.name)
		own.conflict = subnet.Conflict{} // calm: what differs now is written at once
		m.reporter.nodeChanged()
	case observed.replaced: // the store may have an older condition
		own.conflict = subnet.Conflict{}
		m.reporter.nodeChanged()
	}
	reconcile.Notify(m.restore)
	return nil
}

// restoreIfDue restores our annotations if someone else has changed them and the pause of the conflict is over. It
// returns after what time to call it again although the Node has not changed; 0: never. It runs on a goroutine of its
// own, so that Hold goes on observing the Node during the pauses and the requests.
func (m *Manager) restoreIfDue(ctx context.Context, own *ownNode) (next time.Duration) {
	m.mu.Lock()
	patch, changes := m.patchNeeded(own)
	if !own.published { // Publish writes the annotations, or was not called yet
		m.mu.Unlock()
		return 0
	}
	if patch == nil { // nothing differs, or the Node is missing
		own.conflict.Restored()
		m.mu.Unlock()
		return 0
	}
	// round is 0 while the same change waits to be restored, else how often our annotations were changed in this conflict.
	due, round := own.conflict.Changed(time.Now(), rand.N)
	m.mu.Unlock()
	slices.Sort(changes)
	switch round {
	case 1:
		m.log.Warn("annotations of this node were modified externally, restoring them",
			"cause", causeOverwritten, "annotations", strings.Join(changes, " "))
	case 3:
		m.log.Warn("annotations of this node are modified repeatedly; another flanneld or flannel may use this node's name",
			"cause", causeConflict, "annotations", strings.Join(changes, " "))
	}
	if wait := time.Until(due); wait > 0 {
		return wait
	}
	err := m.retry(ctx, "restore our annotations", func(ctx context.Context) error { return m.writeAnnotations(ctx, own) })
	if err != nil && ctx.Err() == nil { // the API server has rejected the patch; after other failures, retry has repeated it
		m.mu.Lock()
		own.conflict.Restored() // so that the next change begins a pause
		m.mu.Unlock()
		m.log.Warn("could not restore the annotations of this node", "error", err)
	}
	return 0
}
