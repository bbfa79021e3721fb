package kube

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"flannel/subnet/kube/format"
)

// A watch of metadata lacks the podCIDR, and a Node's annotations must not be believed about it: it has to be read once
// for each Node that is new. All daemons hear of a new Node at the same moment. So that the API server does not get as
// many requests as there are Nodes at once, and that many times the new Nodes:
//
//   - it is read from the API server's memory (at the version of the event), never from etcd;
//   - each daemon waits for a random time that grows with the cluster, and rests for a longer one between two;
//   - what becomes new meanwhile is read along with it, many by one request.
//
// The watch goes on meanwhile. Per Node the order of changes is kept: those of a Node that is being read wait for the
// answer, and of these only the last one counts.

// lookups are the Nodes whose podCIDR is unknown.
type lookups struct {
	of      map[string]*lookup // by name
	fresh   time.Time          // when those are due that were never asked for; in the past: there may be none
	rest    time.Time          // before this, nobody new is asked for
	running int
	answers chan answer // has room for all that run
}

// lookup is one Node's. A Node that is made anew gets a new one.
type lookup struct {
	node  *format.Node // as last heard of
	asked bool         // a request is on its way
	due   time.Time    // of the next request; zero: nothing can have changed since the last one

	seen      string    // the version at which it had no podCIDR; "": it was never read
	read      time.Time // when that was
	tries     int       // without a podCIDR, or in vain since the last answer
	impatient bool      // nobody else asks for this Node
}

// answer is what came of a request.
type answer struct {
	asked []*lookup
	nodes map[string]*format.Node // some may be missing: they are no more
	err   error
}

const (
	// spreadEach is the time per Node over which the daemons of a cluster spread their requests for one new Node: 1 s
	// among 5,000, so that there are 5,000 of them a second whatever the size of the cluster.
	spreadEach = 200 * time.Microsecond
	spreadMax  = 5 * time.Second
	spreadFrom = 200 // Nodes; in a smaller cluster nobody waits
	// A Node without podCIDR is read again after an event of it, and after this time, which doubles.
	emptyMin, emptyMax = time.Second, 30 * time.Second
	retryMin, retryMax = 100 * time.Millisecond, 30 * time.Second
	// maxLookups bounds how often a daemon asks at a time; in a cluster that is not small, maxSpread does.
	maxLookups, maxSpread = 8, 2
)

func newLookups() lookups {
	return lookups{of: map[string]*lookup{}, answers: make(chan answer, maxLookups)}
}

// spread is the time over which this daemon and the others spread a request that all make for the same reason.
func (s *follower) spread() time.Duration {
	if s.only != "" || len(s.known) <= spreadFrom {
		return 0
	}
	return min(time.Duration(len(s.known))*spreadEach, spreadMax)
}

// want takes in what was heard of a Node without known podCIDR, and asks for it if it can have one. It reports whether
// the Node was read before and had none, so that others may know it as it is.
func (ls *lookups) want(n *format.Node, spread time.Duration, impatient bool) (read bool) {
	l := ls.of[n.Name]
	if l == nil || l.node.UID != n.UID {
		l = &lookup{impatient: impatient}
		ls.of[n.Name] = l
	}
	l.node = n
	switch {
	case n.Whole:
		l.empty(n.Version)
	case l.asked || !l.due.IsZero():
	case l.seen == "":
		if now := time.Now(); !ls.fresh.After(now) { // a past one was that of Nodes that are gone, or about to be asked for
			ls.fresh = later(now.Add(jitter(spread)), ls.rest)
		}
		l.due = ls.fresh
	default:
		l.due = l.again()
	}
	return l.seen != ""
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// jitter is a random part of d.
func jitter(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return rand.N(d)
}

// empty notes that the Node had no podCIDR at a version.
func (l *lookup) empty(version string) {
	l.seen, l.read, l.due = version, time.Now(), time.Time{}
	l.tries++
	if older(version, l.node.Version) {
		l.due = l.again() // meanwhile it may have got one
	}
}

// again is when a Node that had no podCIDR may be read again.
func (l *lookup) again() time.Time {
	if l.impatient {
		return time.Now()
	}
	return l.read.Add(backoff(emptyMin, emptyMax, l.tries-1))
}

// backoff doubles from low to high, with jitter.
func backoff(low, high time.Duration, tries int) time.Duration {
	d := min(low<<min(tries, 16), high)
	return d*3/4 + rand.N(d/2)
}

// timer fires when a request is due and may be made; stop it when it is not waited for any more.
func (ls *lookups) timer(spread time.Duration) (due <-chan time.Time, stop func() bool) {
	var first time.Time
	for _, l := range ls.of {
		if !l.asked && !l.due.IsZero() && (first.IsZero() || l.due.Before(first)) {
			first = l.due
		}
	}
	most := maxLookups
	if spread > 0 {
		most = maxSpread
	}
	if first.IsZero() || ls.running >= most {
		return nil, func() bool { return true }
	}
	t := time.NewTimer(time.Until(first))
	return t.C, t.Stop
}

// lookUp asks for all that is due, and for what is new along with it.
func (s *follower) lookUp(ctx context.Context) {
	a := answer{}
	version := ""
	wanted := map[string]*format.Node{}
	for name, l := range s.lookups.of {
		fresh := l.seen == "" && l.tries == 0
		if l.asked || l.due.IsZero() || !fresh && time.Now().Before(l.due) {
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
	spread := s.spread()
	s.lookups.fresh, s.lookups.rest = time.Time{}, time.Now().Add(spread+spread/4+jitter(spread*5/2))
	s.lookups.running++
	go func() {
		ctx, cancel := context.WithTimeout(ctx, attempt)
		defer cancel()
		a.nodes, a.err = s.m.api.NodesByName(ctx, wanted, version)
		s.lookups.answers <- a
	}()
}

// answered hands over the Nodes that were looked up.
func (s *follower) answered(ctx context.Context, a answer) error {
	s.lookups.running--
	var changes []change
	for _, l := range a.asked {
		name := l.node.Name
		if s.lookups.of[name] != l {
			continue // it was deleted, made anew, or is no peer any more
		}
		l.asked = false
		n := a.nodes[name]
		switch {
		case n != nil && n.UID == l.node.UID:
			changes = append(changes, change{name: name, node: s.learn(l, n)})
		case n == nil && a.err != nil:
			l.due = time.Now().Add(retryAfter(a.err, l.tries) + jitter(s.spread())) // else who is told the same comes back at once
			l.tries++
		}
		// Else it was deleted, or made anew, and the watch is about to say so.
	}
	s.blameLookup(a.err)
	if len(changes) == 0 {
		return nil
	}
	return s.hand(ctx, changes)
}

// learn takes in a Node that was read, and returns it as it was last heard of, so that nothing goes back in time.
func (s *follower) learn(l *lookup, read *format.Node) *format.Node {
	n := *l.node
	if n.CIDRs = read.CIDRs; len(n.CIDRs) > 0 {
		delete(s.lookups.of, n.Name)
	} else {
		if l.seen == "" {
			l.tries = 0 // what failed before is another matter
		}
		l.empty(read.Version)
	}
	s.known[n.Name] = known{n.UID, n.CIDRs}
	return &n
}

func retryAfter(err error, tries int) time.Duration {
	d := backoff(retryMin, retryMax, tries)
	if seconds, asked := apierrors.SuggestsClientDelay(err); asked {
		d = max(d, min(time.Duration(seconds)*time.Second, time.Minute))
	}
	return d
}

func (s *follower) lookupActivity() string { return s.activity + ": podCIDRs" }

// blameLookup says what went wrong, or that it is over. A server that is busy is no outage.
func (s *follower) blameLookup(err error) {
	if err != nil && !apierrors.IsTooManyRequests(err) {
		s.m.blame(s.lookupActivity(), fmt.Errorf("%s: %w", s.lookupActivity(), err))
	} else {
		s.m.through(s.lookupActivity())
	}
}
