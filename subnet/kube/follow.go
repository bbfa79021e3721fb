package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"flannel/subnet"
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
	node *node
	// The store is an older one than before, or another: nobody deleted what is missing, and its versions mean nothing
	// beside those of before.
	replaced bool
}

var (
	errDone = errors.New("done")
	// errRelist says that the watch cannot go on from where it was.
	errRelist = errors.New("the position in the store is lost")
)

// follower is the state from one connection to the next.
type follower struct {
	m *Manager
	feed
	version string           // everything up to here is known; "": nothing is
	reached string           // the version before it was lost
	known   map[string]known // nil before the first list
	broken  bool             // the last watch did not end in order
	behind  int              // how often the API server was behind the store at the first list
	pause   patience.Backoff
}

// known is what the watch does not tell, and why it need not: a Node's podCIDR never changes once it is set.
type known struct {
	uid   string
	cidrs []string
}

// follow keeps somebody in step with the store, over outages of any length, until ctx ends (nil) or f.to ends it.
func (m *Manager) follow(ctx context.Context, f feed) error {
	defer m.outage.Forget(f.activity)
	s := &follower{m: m, feed: f}
	for ctx.Err() == nil {
		err := s.run(ctx)
		switch {
		case errors.Is(err, errDone):
			m.through(f.activity)
			return nil
		case errors.Is(err, subnet.ErrMoved):
			return err
		case ctx.Err() != nil || err == nil:
		case errors.Is(err, errRelist) || expired(err):
			s.version = ""
			s.pause.Wait(ctx)
		default:
			s.broken = true
			m.failed(ctx, f.activity, fmt.Errorf("%s: %w", f.activity, err), &s.pause)
		}
	}
	return nil
}

func (s *follower) run(ctx context.Context) error {
	if s.broken && s.version != "" {
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

// check asks, after a lost connection, whether the store has got as far as we. One that was restored from a backup
// has not, and a watch of it would stay silent until it has.
func (s *follower) check(ctx context.Context) error {
	version, err := s.m.storeVersion(ctx)
	if err != nil {
		return err
	}
	if s.broken = false; older(version, s.version) {
		s.m.log.Error("the Kubernetes API has an older store than before: reading all of it again")
		return errRelist
	}
	return nil
}

// older compares two resourceVersions. Those of different resources may be compared, too.
func older(a, b string) bool {
	x, err1 := strconv.ParseUint(a, 10, 64)
	y, err2 := strconv.ParseUint(b, 10, 64)
	return err1 == nil && err2 == nil && x < y
}

// list reads all. What is missing in it is a change like any other.
func (s *follower) list(ctx context.Context) error {
	at := ""
	if s.known == nil && s.only == "" {
		var err error
		if at, err = s.atLeast(ctx); err != nil {
			return err
		}
	}
	now := map[string]known{}
	var changes []change
	version, err := s.m.list(ctx, s.only, at, func(n *node) {
		now[n.name] = known{n.uid, n.cidrs}
		changes = append(changes, change{name: n.name, node: n})
	})
	if err != nil {
		if isBehind(err) {
			s.behind++
		}
		return err
	}
	lacking := 0
	for name := range s.known {
		if _, still := now[name]; !still {
			changes = append(changes, change{name: name})
			lacking++
		}
	}
	if _, there := now[s.only]; s.only != "" && !there {
		changes = append(changes, change{name: s.only})
	}
	if s.replacedBy(version, now) {
		for i := range changes {
			changes[i].replaced = true
		}
		if s.only == "" {
			s.m.log.Error("the Kubernetes API has another or an older store than before: nodes that it lacks are retained as peers",
				"missing", lacking, "present", len(now))
		}
	}
	s.known = now
	if err := s.to(ctx, changes); err != nil {
		return err
	}
	s.version, s.reached, s.broken = version, version, false
	return nil
}

// replacedBy tells whether a list cannot be of the store that was read before: it is older, or has another Node by the
// name of ours.
func (s *follower) replacedBy(version string, now map[string]known) bool {
	if s.known == nil {
		return false
	}
	was, is := s.known[s.m.ownName()], now[s.m.ownName()]
	return older(version, s.reached) || was.uid != "" && was.uid != is.uid
}

// watch delivers changes from the position on until the stream ends (nil) or breaks.
func (s *follower) watch(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	body, err := s.m.watch(ctx, s.only, s.version)
	if err != nil {
		return err
	}
	s.m.through(s.activity)
	began := time.Now()
	in := make(chan event, 64) // whatever happens, no more than these wait here: the rest waits in the server
	ended := make(chan error, 1)
	go func() {
		defer body.Close() //nolint:errcheck // nothing is lost with it
		defer close(in)
		for r := newReader(body); ; {
			e, err := r.event(s.m.o.Prefix)
			if err != nil {
				ended <- err
				return
			}
			select {
			case in <- e:
			case <-ctx.Done():
				ended <- ctx.Err()
				return
			}
		}
	}()
	for e := range in {
		if err := s.take(ctx, gather(e, in)); err != nil {
			return err
		}
		s.pause = patience.Backoff{}
	}
	if err := <-ended; !errors.Is(err, io.EOF) {
		return err
	}
	if time.Since(began) < time.Second {
		s.pause.Wait(ctx) // something between us and the API server does not like watches
	}
	return nil
}

// gather takes what else has already arrived: a burst of changes becomes one call.
func gather(e event, in <-chan event) []event {
	all := []event{e}
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
func (s *follower) take(ctx context.Context, events []event) error {
	var changes []change
	for _, e := range events {
		switch e.kind {
		case "ADDED", "MODIFIED":
			changes = append(changes, change{name: e.node.name, node: e.node})
		case "DELETED":
			changes = append(changes, change{name: e.node.name})
		case "ERROR":
			return &apierrors.StatusError{ErrStatus: *e.status}
		}
	}
	if err := s.complete(ctx, changes); err != nil {
		return err
	}
	if len(changes) > 0 {
		if err := s.to(ctx, changes); err != nil {
			s.version = "" // it shall get the whole again
			return err
		}
	}
	s.version = events[len(events)-1].node.version
	s.reached = s.version
	return nil
}

// complete adds the podCIDRs, and asks for those that are not known: of Nodes that are new, or were made anew.
func (s *follower) complete(ctx context.Context, changes []change) error {
	asking, ctx := errgroup.WithContext(ctx)
	asking.SetLimit(8)
	for i := range changes {
		c := &changes[i]
		if c.node == nil {
			continue
		}
		if k := s.known[c.name]; k.uid == c.node.uid && len(k.cidrs) > 0 {
			c.node.cidrs = k.cidrs
			continue
		}
		if s.only == "" && c.node.notes[managed] != "true" {
			continue // no peer, at least not yet
		}
		asking.Go(func() error {
			n, err := s.m.get(ctx, c.name)
			if apierrors.IsNotFound(err) {
				c.node = nil // and the watch is about to say so
				return nil
			}
			if err == nil {
				c.node = n
			}
			return err
		})
	}
	if err := asking.Wait(); err != nil {
		return err
	}
	for _, c := range changes {
		if c.node == nil {
			delete(s.known, c.name)
		} else {
			s.known[c.name] = known{c.node.uid, c.node.cidrs}
		}
	}
	return nil
}
