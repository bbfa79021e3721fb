package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"flannel/pkg/reconcile"
	"flannel/subnet"
)

// feed is a part of the Nodes, and the consumer (handle) that is called with their changes. There are three:
// all Nodes (Watch), our own Node (Hold), and our own Node until it has a podCIDR (readOwn). Each is followed on the
// goroutine of the method in parentheses.
type feed struct {
	activity string // for messages
	only     string // the name of one Node; "": all Nodes
	// handle is called from one goroutine, that of follow: first with all Nodes, or with a change without a Node if the
	// only one does not exist, then with changes. Later lists are handed over as changes, too: all Nodes, and those that
	// are missing now. A feed of one Node gets at least one change in each call. An error ends follow: it is errDone or
	// subnet.ErrMoved (our Node has another podCIDR).
	handle func(context.Context, []change) error
}

// change is the new state of a Node, or the same as before.
type change struct {
	name string
	node *storedNode // with its podCIDRs, if flannel manages it; nil: the Node does not exist
	// replaced: the store is another or an older one than at the call before. So a missing Node was not deleted by anybody,
	// and resourceVersions must not be compared with earlier ones.
	replaced bool // the same for all changes of one call
}

var (
	// errDone is returned by a handle that needs no more changes: follow returns nil.
	errDone = errors.New("done")
	// errRelist says that the watch cannot continue where it ended, and the Nodes must be listed again.
	errRelist = errors.New("lost the position in the store")
)

// follower is what follow knows from one connection to the next. It belongs to the goroutine of follow.
//
//	state     cause                                       action                           next state
//	listing   the list succeeds                           hand over the changes            watching
//	listing   a Node is older than before, and the store  mark the store as replaced,      listing
//	          is not marked                               pause, see relists
//	any       the API server finds a version too new      pause, see relists               checking
//	watching  the watch ends regularly                    open the next one                watching
//	watching  the watch breaks                            pause                            checking
//	watching  the API server is too busy (429)            pause                            watching
//	listing   the API server is too busy (429)            pause, among many Nodes longer   listing
//	watching  an event cannot be decoded                  pause, see relists               listing
//	watching  the position expired                        pause, see relists               listing
//	checking  the store is as far as we were              -                                watching, listing
//	checking  the store is older                          mark it as replaced              listing
//
// listing is an empty version; checking is lagging, or broken with a version. A position is a resourceVersion, and "too
// new" is one that the API server has not reached (isVersionTooLarge). A watch that opens after the API server was too busy
// is checked before its first event (wasBusy), not before each attempt to open it, which would ask etcd each time.
type follower struct {
	m *Manager
	feed
	version  string           // the position: changes up to this resourceVersion were handed over; "": list first
	reached  string           // the last position, kept when version is cleared
	floor    string           // the next list must not be older than this; "" before the first list
	rewound  bool             // the store, or a Node in it, is older than before, and nothing was handed over since
	known    map[string]known // by name; nil before the first list
	broken   bool             // an attempt failed, other than by a busy server, and neither a check nor a list has succeeded since
	wasBusy  bool             // an attempt failed by a busy server, and neither a check nor a list has succeeded since
	lagged   int              // how often the API server was behind the store at the first list, see listFirst
	lagging  bool             // the API server rejected our position as too new, and check has not succeeded since
	failures int              // since the last event, after which the pauses grow
	relists  relists          // the pauses before lists
	lookups  lookups          // the Nodes whose podCIDR is unknown
}

// known is what follow remembers of a Node that it handed over: the podCIDRs, because the watch of metadata does not carry
// them, and the resourceVersion, to recognize a store that is rewound. A Node's podCIDRs never change once they are set,
// except in such a store; a recreated Node has another UID.
type known struct {
	uid, version string
	cidrs        []string
}

// follow hands over the changes of f, over outages of any length, until ctx ends (nil) or f.handle ends it.
func (m *Manager) follow(ctx context.Context, f feed) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // stops running lookups
	s := &follower{m: m, feed: f, lookups: newLookups()}
	defer m.outage.Forget(f.activity)
	defer m.outage.Forget(s.lookupActivity())
	for ctx.Err() == nil {
		err := s.run(ctx)
		switch {
		case errors.Is(err, errDone):
			m.succeeded(f.activity) // else only an opened watch says so, and a list may have been enough
			return nil
		case errors.Is(err, subnet.ErrMoved):
			return err
		case ctx.Err() != nil || err == nil: // nil: the watch ended regularly, and the next run opens another one
		case errors.Is(err, errRelist) || isExpired(err) || isVersionTooLarge(err):
			s.version, s.lagging = "", isVersionTooLarge(err) // list next; if the version is too new, check first
			reconcile.Pause(ctx, s.relistPause())
		default:
			busy := apierrors.IsTooManyRequests(err)
			s.broken, s.wasBusy = s.broken || !busy, s.wasBusy || busy
			m.recordAndWait(ctx, f.activity, fmt.Errorf("%s: %w", f.activity, err), &s.failures)
			undecodable := errors.Is(err, errUndecodable)
			if undecodable { // a watch from there would receive the same event again
				s.version = ""
			}
			// All daemons receive that event, and their lists together keep the API server busy.
			if undecodable || busy && s.version == "" && s.spread() > 0 {
				reconcile.Pause(ctx, s.relistPause())
			}
		}
	}
	return nil
}

// run checks the store and lists the Nodes if necessary, and watches them until the watch ends.
func (s *follower) run(ctx context.Context) error {
	if s.lagging || s.broken && s.version != "" {
		if err := s.check(ctx); err != nil {
			return err
		}
	}
	if s.version == "" {
		if err := s.list(ctx); err != nil {
			return err
		}
	}
	return s.watch(ctx)
}

// The server is asked to end a watch after watchLimit to twice that. If it has not done so watchGrace later, it sends no
// events any more, such as a proxy whose own connection to the API server is dead.
const watchLimit, watchGrace = 5 * time.Minute, 30 * time.Second

// watch hands over changes after the position until the stream ends regularly (nil) or breaks.
func (s *follower) watch(ctx context.Context) error {
	// The server is asked to end the watch after limit, which is random, so that the daemons do not reconnect together.
	// Reconnecting spreads them over the API servers again, after one of these was down. 5 to 10 minutes are what client-go
	// has, too.
	limit := watchLimit + rand.N(watchLimit)
	watching, cancel := context.WithTimeout(ctx, limit+watchGrace)
	defer cancel()
	body, err := s.m.api.Watch(watching, s.only, s.version, limit)
	if err != nil {
		return err
	}
	if s.wasBusy { // meanwhile the store may have been restored
		if err := s.check(ctx); err != nil {
			_ = body.Close()
			return err
		}
	}
	s.m.succeeded(s.activity)
	began := time.Now()
	in := make(chan watchEvent, 64) // bounds our memory: further events wait in the API server
	ended := make(chan error, 1)    // with room, so that the goroutine ends although nobody receives
	go func() {                     // decodes, while this goroutine hands over; ends with watching or the stream
		defer body.Close() //nolint:errcheck // it was only read
		ended <- s.m.receive(watching, body, in)
		close(in)
	}()
	if err := s.receiveAll(ctx, in); err != nil {
		return err // the deferred cancel ends the goroutine
	}
	if err := <-ended; !errors.Is(err, io.EOF) { // EOF: the API server ended the watch, as it does after some minutes
		if errors.Is(watching.Err(), context.DeadlineExceeded) {
			s.m.api.transport.renew(s.m.api.Transport(), true) // its connection may lead to a server that hangs
		}
		return err
	}
	if time.Since(began) < time.Second {
		subnet.Pause(ctx, s.failures) // something between us and the API server ends watches at once
		s.failures++
	}
	return nil
}

// receive decodes the events of a watch until it ends. It runs on a goroutine of its own, so it must not use the follower.
func (m *Manager) receive(ctx context.Context, body io.Reader, in chan<- watchEvent) error {
	for r := newWatchReader(body); ; {
		e, err := r.Event(m.o.Prefix)
		if err != nil {
			return err
		}
		select {
		case in <- e:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// receiveAll hands over the events of a watch until it ends (nil), and the Nodes that were looked up meanwhile. The
// error is that of the API server in an event, or that of handle.
func (s *follower) receiveAll(ctx context.Context, in <-chan watchEvent) error {
	for {
		select {
		case e, ok := <-in:
			if !ok {
				return nil
			}
			if err := s.handleEvents(ctx, gather(e, in)); err != nil {
				return err
			}
			s.failures = 0
		case a := <-s.lookups.answers:
			if err := s.handleAnswer(ctx, a); err != nil {
				return err
			}
		case <-s.lookups.whenDue(s.spread()):
			s.startLookup(ctx)
		}
	}
}

// gather adds to e the events that have already arrived, so that a burst of changes becomes one call of handle. It stops
// at 2*cap(in) events, since more may arrive meanwhile without end.
func gather(e watchEvent, in <-chan watchEvent) []watchEvent {
	events := []watchEvent{e}
	for len(events) < 2*cap(in) {
		select {
		case e, ok := <-in:
			if !ok {
				return events
			}
			events = append(events, e)
		default:
			return events
		}
	}
	return events
}

// handleEvents hands over a batch of events and moves the position behind it. A batch with an error is not handed over,
// and the position stays before it.
func (s *follower) handleEvents(ctx context.Context, events []watchEvent) error {
	var changes []change
	for _, e := range events {
		switch e.Kind { // a BOOKMARK, whose Node has only a Version, just moves the position
		case "ADDED", "MODIFIED":
			changes = append(changes, change{name: e.Node.Name, node: e.Node})
		case "DELETED":
			changes = append(changes, change{name: e.Node.Name})
		case "ERROR":
			return &apierrors.StatusError{ErrStatus: *e.Status}
		}
	}
	changes = slices.DeleteFunc(changes, func(c change) bool { return !s.recordNode(c) })
	if len(changes) > 0 {
		if err := s.handOver(ctx, changes); err != nil {
			return err
		}
	}
	if len(s.lookups.byName) == 0 {
		s.m.outage.Over(s.lookupActivity()) // the Nodes whose lookup failed are gone; the events prove that the store answers
	}
	s.moveTo(events[len(events)-1].Node.Version) // Node is not nil: only an ERROR has none
	return nil
}

// recordNode records a Node's UID, resourceVersion and podCIDRs, and completes c.node with the podCIDRs. It reports
// whether c can be handed over now. If not, it has requested a lookup of the podCIDR, whose answer hands the Node over.
func (s *follower) recordNode(c change) bool {
	n := c.node
	if n == nil {
		delete(s.known, c.name)
		delete(s.lookups.byName, c.name)
		return true
	}
	if k := s.known[c.name]; !n.HasSpec && k.uid == n.UID {
		n.CIDRs = k.cidrs
	}
	needsCIDRs := s.only != "" || n.Annotations[managed] == "true" // other Nodes are no peers, with a podCIDR or without
	if len(n.CIDRs) > 0 || !needsCIDRs {
		delete(s.lookups.byName, c.name)
	} else {
		// The last argument: no other daemon looks our own Node up, so that nothing has to be spread.
		everRead := s.lookups.request(n, s.spread(), s.only != "")
		if !everRead {
			return false // known stays as it was handed over last
		}
	}
	s.known[c.name] = known{n.UID, n.Version, n.CIDRs}
	return true
}

// handOver calls the consumer with changes that recordNode has completed. The feed of all Nodes also keeps members up to
// date: the names of the nodes, of which some write Events.
func (s *follower) handOver(ctx context.Context, changes []change) error {
	if s.only == "" {
		s.m.members.update(changes)
	}
	return s.handle(ctx, changes)
}

// moveTo sets the position to that of a list, or of the last event that was handled.
func (s *follower) moveTo(version string) { s.version, s.reached, s.floor = version, version, version }
