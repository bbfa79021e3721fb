package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"flannel/subnet"
	"flannel/subnet/kube/client"
	"flannel/subnet/kube/format"
	"flannel/subnet/patience"
)

// feed is what somebody wants to know of.
type feed struct {
	activity string // for messages
	only     string // one Node; "": all that are managed
	// to gets changes, and at first all that there is; of a Node that is missing, only that. It is called from one
	// goroutine. An error makes follow read all again after a pause; errDone and subnet.ErrMoved end it.
	to func(context.Context, []change) error
}

// change is how a Node is now; nil: it is no more.
type change struct {
	name string
	node *format.Node
	// The store is an older one than before, or another: nobody deleted what is missing, and its versions mean nothing
	// beside those of before.
	replaced bool
}

var (
	errDone = errors.New("done")
	// errRelist says that the watch cannot go on from where it was.
	errRelist = errors.New("the position in the store is lost")
)

// follower is the state from one connection to the next. One goroutine has it.
type follower struct {
	m *Manager
	feed
	version string           // everything up to here is known; "": nothing is, or the position is lost
	reached string           // the version before it was lost
	floor   string           // what the next list must not be older than; "" before the first list
	rewound bool             // the store is an older one than before, and was not listed since
	known   map[string]known // nil before the first list
	broken  bool             // the last watch did not end in order
	lagged  int              // how often the API server was behind the store at the first list
	lagging bool             // the API server said that it is not as far as we were
	pause   patience.Backoff
	relists relists
	lookups lookups
}

// known is what the watch does not carry, and why it need not: a Node's podCIDR never changes once it is set.
type known struct {
	uid   string
	cidrs []string
}

// follow keeps somebody up to date with the store, over outages of any length, until ctx ends (nil) or f.to ends it.
func (m *Manager) follow(ctx context.Context, f feed) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the lookups
	s := &follower{m: m, feed: f, lookups: newLookups()}
	defer m.outage.Forget(f.activity)
	defer m.outage.Forget(s.lookupActivity())
	for ctx.Err() == nil {
		err := s.run(ctx)
		switch {
		case errors.Is(err, errDone):
			m.through(f.activity)
			return nil
		case errors.Is(err, subnet.ErrMoved):
			return err
		case ctx.Err() != nil || err == nil:
		case errors.Is(err, errRelist) || client.IsExpired(err) || client.IsVersionTooLarge(err):
			s.version, s.lagging = "", client.IsVersionTooLarge(err)
			patience.Pause(ctx, s.relists.next(time.Now(), len(s.known)))
		default:
			s.broken = true
			m.failed(ctx, f.activity, fmt.Errorf("%s: %w", f.activity, err), &s.pause)
		}
	}
	return nil
}

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

// watch delivers changes from the position on until the stream ends (nil) or breaks.
func (s *follower) watch(ctx context.Context) error {
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	body, err := s.m.api.Watch(watching, s.only, s.version)
	if err != nil {
		return err
	}
	s.m.through(s.activity)
	began := time.Now()
	in := make(chan format.Event, 64) // whatever happens, no more than these wait here: the rest waits in the server
	ended := make(chan error, 1)
	go func() {
		defer body.Close() //nolint:errcheck // nothing is lost with it
		ended <- s.m.receive(watching, body, in)
		close(in)
	}()
	if err := s.deliver(ctx, in); err != nil {
		return err
	}
	if err := <-ended; !errors.Is(err, io.EOF) {
		return err
	}
	if time.Since(began) < time.Second {
		s.pause.Wait(ctx) // something between us and the API server does not like watches
	}
	return nil
}

// receive reads a watch until it ends.
func (m *Manager) receive(ctx context.Context, body io.Reader, in chan<- format.Event) error {
	for r := format.NewReader(body); ; {
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

// deliver hands over what arrives by a watch, until it ends, and what was looked up meanwhile.
func (s *follower) deliver(ctx context.Context, in <-chan format.Event) error {
	for {
		due, stop := s.lookups.timer(s.spread())
		select {
		case e, ok := <-in:
			stop()
			if !ok {
				return nil
			}
			if err := s.take(ctx, gather(e, in)); err != nil {
				return err
			}
			s.pause = patience.Backoff{}
		case a := <-s.lookups.answers:
			stop()
			if err := s.answered(ctx, a); err != nil {
				return err
			}
		case <-due:
			s.lookUp(ctx)
		}
	}
}

// gather takes what else has already arrived: a burst of changes becomes one call.
func gather(e format.Event, in <-chan format.Event) []format.Event {
	all := []format.Event{e}
	for len(all) < 2*cap(in) {
		select {
		case e, ok := <-in:
			if !ok {
				return all
			}
			all = append(all, e)
		default:
			return all
		}
	}
	return all
}

// take hands over one batch and moves the position behind it.
func (s *follower) take(ctx context.Context, events []format.Event) error {
	var changes []change
	for _, e := range events {
		switch e.Kind {
		case "ADDED", "MODIFIED":
			changes = append(changes, change{name: e.Node.Name, node: e.Node})
		case "DELETED":
			changes = append(changes, change{name: e.Node.Name})
		case "ERROR":
			return &apierrors.StatusError{ErrStatus: *e.Status}
		}
	}
	if changes = slices.DeleteFunc(changes, func(c change) bool { return !s.admit(c) }); len(changes) > 0 {
		if err := s.hand(ctx, changes); err != nil {
			return err
		}
	}
	if len(s.lookups.of) == 0 {
		s.m.outage.Forget(s.lookupActivity()) // whoever was asked for in vain is gone
	}
	s.moveTo(events[len(events)-1].Node.Version)
	return nil
}

// admit reports whether a change can be handed over. If not, the Node's podCIDR is looked up first; whoever is known
// does not wait for it.
func (s *follower) admit(c change) bool {
	n := c.node
	if n == nil {
		delete(s.known, c.name)
		delete(s.lookups.of, c.name)
		return true
	}
	if k := s.known[c.name]; !n.Whole && k.uid == n.UID {
		n.CIDRs = k.cidrs
	}
	if len(n.CIDRs) == 0 && (s.only != "" || n.Notes[format.Managed] == "true") && !s.lookups.want(n, s.spread(), s.only != "") {
		return false // known stays as it is: what was handed over last
	}
	if len(n.CIDRs) > 0 || n.Notes[format.Managed] != "true" && s.only == "" {
		delete(s.lookups.of, c.name) // no peer, at least not yet, or nothing left to ask
	}
	s.known[c.name] = known{n.UID, n.CIDRs}
	return true
}

// hand hands over changes that were admitted.
func (s *follower) hand(ctx context.Context, changes []change) error {
	if s.only == "" {
		s.m.members.update(changes)
	}
	if err := s.to(ctx, changes); err != nil {
		s.version = "" // it shall get the whole again
		return err
	}
	return nil
}

// moveTo notes that everything up to a version is known.
func (s *follower) moveTo(version string) { s.version, s.reached, s.floor = version, version, version }
