package kube

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"flannel/subnet"
)

// A watch of metadata does not carry the podCIDR of a new Node, and the Node's annotations are not a trusted source for it.
// So each daemon must read each new Node once, and all daemons see it at the same moment. Without care, 50 new Nodes in a
// cluster of 5,000 would be 250,000 requests at once. To limit the load:
//
//   - a Node is read from the API server's memory, at the resourceVersion of the event, never from etcd;
//   - each daemon waits before a request, for a random time that grows with the cluster, and longer between two requests;
//   - Nodes that appear meanwhile are read together with it, many by one request.
//
// The watch goes on meanwhile. The changes of one Node stay in order: while its podCIDR is unknown, its changes wait for
// the lookup, and only the last one is handed over.
//
//	state      cause                                    action                               next state
//	-          a managed Node with an unknown podCIDR   choose the time of the request       due
//	due        its time has come, or that of another    read it, see startLookup             asked
//	asked      the answer has a podCIDR                 hand the Node over                   -
//	asked      the answer has none                      hand the Node over                   empty
//	asked      the request fails                        choose one time for all it lacks     due
//	asked      the Node was recreated                   ignore the answer for it             due
//	empty      an event of the Node                     choose the time of the next one      due
//	any        the Node is deleted or not managed       forget it                            -
//
// asked is the field asked; due is a non-zero due; empty is neither of them. "-" is a Node without a lookup. A Node is
// managed if it has the annotation of that name, so that it is a peer.

// lookups are the Nodes whose podCIDR is unknown. The goroutine of follow owns them; answers come from other goroutines.
type lookups struct {
	byName  map[string]*lookup // those in the states due, asked and empty
	running int                // number of requests
	answers chan answer        // it has room for those of all running requests, so that none waits for follow

	// The Nodes that were never asked for have one time, so that they are read together.
	freshDue  time.Time // that time; zero or in the past: choose one for the next of these Nodes
	freshFrom time.Time // the earliest time that may be chosen as freshDue, or for the Nodes of a failed request
}

// lookup is the state of one Node; a recreated Node gets a new one.
type lookup struct {
	node  *storedNode // as last seen by the watch, or by a list
	asked bool        // a request is running
	due   time.Time   // of the next request; zero: none until the next event

	seen      string    // the resourceVersion at which the Node had no podCIDR; "": it was never read
	read      time.Time // when it was read at seen
	tries     int       // failed requests before the first answer; then, how often a request failed or there was no podCIDR
	impatient bool      // this is the daemon's own Node, which no other daemon looks up: do not wait
}

// answer is the result of a request.
type answer struct {
	asked []*lookup              // whose Nodes the request was for
	nodes map[string]*storedNode // by name; those that no longer exist are missing
	err   error                  // with it, nodes has those that were read before
}

const (
	// spreadEach is the time per Node over which the daemons spread their requests for one new Node. With 200 µs, the API
	// server gets 5,000 requests a second: in a cluster of 5,000 Nodes they are spread over 1 s.
	spreadEach = 200 * time.Microsecond
	spreadMax  = 5 * time.Second // from 25,000 Nodes on
	spreadFrom = 200             // Nodes; in a cluster of so many or fewer no daemon waits
	// A Node without podCIDR is read again after its next event, but not before this time has passed, which doubles.
	emptyMin, emptyMax = time.Second, 30 * time.Second
	retryMin, retryMax = 100 * time.Millisecond, 30 * time.Second
	// maxLookups bounds the requests that a daemon runs concurrently; maxSpread does in a cluster of more than spreadFrom.
	maxLookups, maxSpread = 8, 2
)

// newLookups returns the lookups of a follower that looks up nothing yet.
func newLookups() lookups {
	return lookups{byName: map[string]*lookup{}, answers: make(chan answer, maxLookups)}
}

// spread is the time over which all daemons spread a request that each of them makes; 0: no daemon waits.
func (s *follower) spread() time.Duration {
	if s.only != "" || len(s.known) <= spreadFrom {
		return 0
	}
	return min(time.Duration(len(s.known))*spreadEach, spreadMax)
}

// request records an event of a Node whose podCIDR is unknown, and chooses the time of the request, if none is chosen.
// It reports whether the Node was read before, so that it can be handed over as a Node without podCIDR. spread is that
// of the method of this name, and impatient the field of lookup.
func (ls *lookups) request(n *storedNode, spread time.Duration, impatient bool) (everRead bool) {
	l := ls.byName[n.Name]
	if l == nil || l.node.UID != n.UID {
		l = &lookup{impatient: impatient}
		ls.byName[n.Name] = l
	}
	l.node = n
	switch {
	case n.HasSpec: // a list of whole Nodes has read it, and it had no podCIDR
		l.recordEmpty(n.Version)
	case l.asked || !l.due.IsZero(): // the time is chosen
	case l.seen == "":
		if now := time.Now(); !ls.freshDue.After(now) { // a past time was chosen for other Nodes
			if ls.freshDue = now.Add(jitter(spread)); ls.freshDue.Before(ls.freshFrom) {
				ls.freshDue = ls.freshFrom
			}
		}
		l.due = ls.freshDue
	default:
		l.due = l.nextRead()
	}
	return l.seen != ""
}

// jitter returns a random duration below d, 0 if d is 0.
func jitter(d time.Duration) time.Duration { return rand.N(max(d, 1)) }

// recordEmpty records that the Node had no podCIDR at a resourceVersion.
func (l *lookup) recordEmpty(version string) {
	l.seen, l.read, l.due = version, time.Now(), time.Time{}
	l.tries++
	if older(version, l.node.Version) {
		l.due = l.nextRead() // it has changed since, and may have one now
	}
}

// nextRead returns when a Node that had no podCIDR (tries is 1 at least) may be read again.
func (l *lookup) nextRead() time.Time {
	if l.impatient {
		return time.Now()
	}
	return l.read.Add(subnet.DoublePause(emptyMin, emptyMax, l.tries-1))
}

// whenDue returns a channel that receives when the next request is due and may be made: nil, from which nothing is ever
// received, if there is none, or if as many as allowed are running. receiveAll calls it again after each event and
// answer.
func (ls *lookups) whenDue(spread time.Duration) <-chan time.Time {
	var first time.Time
	for _, l := range ls.byName {
		if !l.asked && !l.due.IsZero() && (first.IsZero() || l.due.Before(first)) {
			first = l.due
		}
	}
	limit := maxLookups
	if spread > 0 {
		limit = maxSpread
	}
	if first.IsZero() || ls.running >= limit {
		return nil
	}
	return time.After(time.Until(first))
}

// startLookup starts a request for the Nodes that are due, for those that were never asked for, due or not, and for those
// of failed requests that are due before the next request may be made.
func (s *follower) startLookup(ctx context.Context) {
	a := answer{}
	version := "" // the latest of the wanted Nodes, so that the API server's memory has all of them
	wanted := map[string]*storedNode{}
	now, spread := time.Now(), s.spread()
	// The next request for new Nodes, or for those of a failed request, is 1.25 to 3.75 times spread later, at the earliest.
	// So all daemons together send 2,000 requests a second on average, and more only if spreadMax bounds the spread.
	next := now.Add(spread + spread/4 + jitter(spread*5/2))
	for name, l := range s.lookups.byName {
		fresh := l.seen == "" && l.tries == 0 // never asked for
		until := now
		if l.seen == "" { // else each batch of new Nodes would be repeated by requests of its own, when these fail
			until = next
		}
		if l.asked || l.due.IsZero() || !fresh && l.due.After(until) {
			continue
		}
		l.asked, l.due = true, time.Time{}
		a.asked = append(a.asked, l)
		wanted[name] = l.node
		if version == "" || older(version, l.node.Version) {
			version = l.node.Version
		}
	}
	if len(a.asked) == 0 {
		return
	}
	s.lookups.freshDue, s.lookups.freshFrom = time.Time{}, next
	s.lookups.running++
	go func() {
		ctx, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		a.nodes, a.err = s.m.api.NodesByName(ctx, wanted, version)
		s.lookups.answers <- a
	}()
}

// handleAnswer hands over the Nodes of an answer, with a podCIDR or without. The error is that of handle.
func (s *follower) handleAnswer(ctx context.Context, a answer) error {
	s.lookups.running--
	var changes []change
	var unread []*lookup // whose Nodes the request should have read, and failed
	for _, l := range a.asked {
		name := l.node.Name
		if s.lookups.byName[name] != l {
			continue // it was deleted, recreated, or is no longer managed
		}
		l.asked = false
		n := a.nodes[name]
		switch {
		case n != nil && n.UID == l.node.UID:
			changes = append(changes, change{name: name, node: s.recordLookup(l, n)})
		case n == nil && a.err != nil: // of a request that failed halfway, the Nodes read so far count
			unread = append(unread, l)
		}
		// Else it was deleted or recreated, and the watch will deliver an event of it. Until then, l is as in empty.
	}
	s.lookups.retry(unread, a.err, s.spread())
	s.recordLookupResult(a.err)
	if len(changes) == 0 {
		return nil
	}
	return s.handOver(ctx, changes)
}

// recordLookup records the podCIDRs of a Node that was read. It returns the Node as the watch last saw it, which may be
// newer, with these podCIDRs.
func (s *follower) recordLookup(l *lookup, read *storedNode) *storedNode {
	n := *l.node
	if n.CIDRs = read.CIDRs; len(n.CIDRs) > 0 {
		delete(s.lookups.byName, n.Name)
	} else {
		if l.seen == "" {
			l.tries = 0 // it counted failed requests until now
		}
		l.recordEmpty(read.Version)
	}
	s.known[n.Name] = known{n.UID, n.Version, n.CIDRs}
	return &n
}

// retry chooses the time of the next request for Nodes that a failed one has not read. It is one time for all of them:
// one by one, they would be a request each, while the API server may ask for fewer. The pause is that of the Node whose
// requests failed least often, so that a new Node does not wait for one that can never be read.
func (ls *lookups) retry(unread []*lookup, err error, spread time.Duration) {
	if len(unread) == 0 {
		return
	}
	tries := slices.MinFunc(unread, func(a, b *lookup) int { return cmp.Compare(a.tries, b.tries) }).tries
	due := time.Now().Add(retryAfter(err, tries) + jitter(spread)) // jitter, because the other daemons fail at the same moment
	if due.Before(ls.freshFrom) {
		due = ls.freshFrom
	}
	for _, l := range unread {
		l.due = due
		l.tries++
	}
}

// retryAfter returns the pause after a failed request, which the API server may ask for.
func retryAfter(err error, tries int) time.Duration {
	d := subnet.DoublePause(retryMin, retryMax, tries)
	if seconds, asked := apierrors.SuggestsClientDelay(err); asked {
		d = max(d, min(time.Duration(seconds)*time.Second, time.Minute))
	}
	return d
}

// lookupActivity names the lookups in messages.
func (s *follower) lookupActivity() string { return s.activity + ": podCIDRs" }

// recordLookupResult records an outage or its end; nil is a success. For lookups, "too many requests" is no outage: they
// are due again later (handleAnswer). The API server may answer so before it looks at permissions.
func (s *follower) recordLookupResult(err error) {
	switch activity := s.lookupActivity(); {
	case err == nil:
		s.m.succeeded(activity)
	case !apierrors.IsTooManyRequests(err):
		s.m.recordFailure(activity, fmt.Errorf("%s: %w", activity, err))
	case !s.m.isDenying(activity):
		s.m.outage.Over(activity)
	}
}
