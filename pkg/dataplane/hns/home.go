package hns

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"flannel/pkg/hns"
	"flannel/pkg/reconcile"
)

// Pace is how patient the dataplane of Windows is; a zero field takes the default.
type Pace struct {
	Poll time.Duration // between looks at an HNS that may not tell of every change: 5 s
	Wait time.Duration // between looks while something is waited for: 500 ms
	// Address is how long an adapter may be without the addresses that a person gave it before they are put back (30 s),
	// DHCP the same for one that DHCP gave (1 min), Rest for routes and DNS servers (5 s). After everything was as before
	// for as long as Rest, what it was is forgotten.
	Address, DHCP, Rest time.Duration
	// Wrong is how long a network may have another management address than the host before it is made again: 1 min.
	Wrong time.Duration
}

func (p *Pace) complete() {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{{&p.Poll, 5 * time.Second}, {&p.Wait, 500 * time.Millisecond}, {&p.Address, 30 * time.Second}, {&p.DHCP, time.Minute},
		{&p.Rest, 5 * time.Second}, {&p.Wrong, time.Minute}} {
		if *d.field <= 0 {
			*d.field = d.value
		}
	}
}

// home looks after the host's own addresses, routes and DNS servers, which move when a switch is bound to their adapter,
// and do not always arrive. It works from the start on, whether or not there is a network: without them the daemon may
// never get as far as that.
type home struct {
	path  string // of the journal
	pace  Pace
	stack hns.Stack
	log   *slog.Logger

	mu      sync.Mutex
	journal journal
	unread  error     // why what an earlier run wrote down is not known
	good    *before   // what the host had when all was well the last time
	missed  time.Time // since when addresses are missing on the adapter that should have them
	bare    time.Time // since when it has them, but not all routes and servers
	whole   time.Time // since when it has everything
	warned  string
	pods    []netip.Prefix // routes to them are no business of ours: peers' come and go
}

func newHome(path string, pace Pace, stack hns.Stack, log *slog.Logger) *home {
	h := &home{path: path, pace: pace, stack: stack, log: log}
	var err error
	if h.journal, err = readJournal(path); err != nil {
		h.unread = err
		log.Warn("what an earlier run wrote down of the adapter cannot be read, so nothing is put back", "error", err)
	}
	if b := h.journal.Before; b != nil {
		log.Warn("an earlier run ended while the host's addresses moved; looking whether they have arrived", "adapter", b.Adapter, "written", b.Written)
	}
	return h
}

// pending tells whether something of before has yet to be seen back.
func (h *home) pending() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.journal.Before != nil
}

// names are the networks that we made or took over, now or in an earlier run.
func (h *home) names() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.journal.Networks)
}

// switches are the networks that we made for the sake of their switch.
func (h *home) switches() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.journal.Switches)
}

// own remembers that a device's network is ours, or (ours false) is no more.
func (h *home) own(dev device, ours bool) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if slices.Contains(*h.journal.list(dev), dev.name) == ours {
		return nil
	}
	return h.write(func(j *journal) {
		list := j.list(dev)
		*list = slices.DeleteFunc(*list, func(name string) bool { return name == dev.name })
		if ours {
			*list = append(*list, dev.name)
		}
	})
}

// write changes the journal as it is on disk, where Prepare in another process may have written meanwhile.
func (h *home) write(change func(*journal)) error {
	next, err := readJournal(h.path)
	if err != nil {
		next = journal{slices.Clone(h.journal.Networks), slices.Clone(h.journal.Switches), h.journal.Before}
	}
	change(&next)
	if err := writeJournal(h.path, next); err != nil {
		return err
	}
	h.journal = next
	return nil
}

// well notes what the host has while nothing is wrong.
func (h *home) well(b *before) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(b.Addresses) > 0 && h.journal.Before == nil {
		h.good = b
	}
}

// leave writes down what the host has on an adapter, before something that may take it away. What was written down and
// is not all back yet still counts, and where the host has nothing now, what it had when all was well.
func (h *home) leave(host, physical hns.Adapter, routes []hns.Route) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	best := snapshot(host, physical, routes)
	switch {
	case h.journal.Before != nil && !h.journal.Before.missing(host, routes).nothing():
		best = h.journal.Before
	case len(best.Addresses) > 0:
	case h.good != nil:
		best = h.good
	default:
		return waiting(causeNoAddress, "%s to have an address: a network without one reaches nobody", physical.Name)
	}
	best = best.without(h.pods)
	if h.journal.Before.same(best) {
		return nil // asked again in every pass: what is missing goes on being missing
	}
	h.missed, h.bare, h.whole = time.Time{}, time.Time{}, time.Time{}
	return h.write(func(j *journal) { j.Before = best })
}

// know tells of the pod network. Its routes that an earlier backend, or run, left on the adapter look like any
// program's until then.
func (h *home) know(pods []netip.Prefix) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if slices.Equal(h.pods, pods) {
		return nil
	}
	h.pods = slices.Clone(pods)
	if h.good != nil {
		h.good = h.good.without(pods)
	}
	if b := h.journal.Before; b == nil || b.same(b.without(pods)) {
		return nil
	}
	return h.write(func(j *journal) {
		if j.Before != nil {
			j.Before = j.Before.without(pods)
		}
	})
}

// mend puts back what is missing for too long, and says what is still waited for. networks are all HNS networks.
func (h *home) mend(networks []hns.Network) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	b := h.journal.Before
	if b == nil {
		return nil
	}
	adapters, err1 := h.stack.Adapters()
	routes, err2 := h.stack.Routes()
	if err := errors.Join(err1, err2); err != nil {
		return reconcile.Unknown(fmt.Errorf("look for the addresses of %s: %w", b.Adapter, err))
	}
	host, err := b.host(adapters, networks)
	if err != nil {
		return err
	}
	l := b.missing(host, routes)
	if l.addresses() {
		h.bare, h.whole = time.Time{}, time.Time{}
		return h.mendAddresses(b, host, l)
	}
	h.missed = time.Time{}
	if !l.nothing() {
		h.whole = time.Time{}
		return h.mendRest(host, l)
	}
	return h.settle(host)
}

// passed tells whether something has lasted; the first look begins it.
func passed(since *time.Time, limit time.Duration) bool {
	if since.IsZero() {
		*since = time.Now()
	}
	return time.Since(*since) >= limit
}

// mendAddresses gives Windows its time to do it itself. When it has settled for an address of its own invention, it
// will not.
func (h *home) mendAddresses(b *before, host hns.Adapter, l lost) error {
	late := passed(&h.missed, h.pace.Address) || apipa(host)
	back := l.manual
	if !late {
		back = nil
	}
	if passed(&h.missed, h.pace.DHCP) {
		back = append(back, l.leased...)
	}
	for _, p := range back {
		err := h.stack.AddAddress(host.Index, p)
		if err != nil && !errors.Is(err, hns.ErrExists) {
			return fmt.Errorf("put the address %s back on %s: %w", p, host.Name, err)
		}
		h.log.Info("put back an address that was lost when the adapter's switch changed", "cause", causeAddressRestored, "address", p, "adapter", host.Name)
	}
	return waiting(causeNoAddress, "%s to come back on %s", list(append(l.manual, l.leased...)), host.Name)
}

func list(prefixes []netip.Prefix) string {
	text := ""
	for i, p := range prefixes {
		if i > 0 {
			text += ", "
		}
		text += p.Addr().String()
	}
	return text
}

// mendRest does what it can: a route whose gateway is no more must not keep the node from the network for ever.
func (h *home) mendRest(host hns.Adapter, l lost) error {
	if !passed(&h.bare, h.pace.Rest) {
		return waiting(causeNoRoutes, "routes and DNS servers to come back on %s", host.Name)
	}
	var errs []error
	for _, r := range l.routes {
		err := h.stack.AddRoute(hns.Route{Dst: r.Dst, NextHop: r.NextHop, Index: host.Index, Metric: r.Metric, Ours: true})
		if err == nil {
			h.log.Info("put back a route that was lost when the adapter's switch changed", "cause", causeRouteRestored, "route", r.Dst, "via", r.NextHop, "adapter", host.Name)
		}
		errs = append(errs, err)
	}
	if l.dns != nil {
		err := h.stack.SetDNS(host.Index, l.dns)
		if err == nil {
			h.log.Info("put back the DNS servers that were lost when the adapter's switch changed", "cause", causeDNSRestored, "servers", l.dns, "adapter", host.Name)
		}
		errs = append(errs, err)
	}
	err := errors.Join(errs...)
	switch {
	case err == nil:
		return waiting(causeNoRoutes, "routes and DNS servers to be back on %s", host.Name)
	case passed(&h.bare, h.pace.DHCP):
		h.log.Warn("giving up putting back what was lost when the adapter's switch changed", "adapter", host.Name, "error", err)
		return h.forget()
	case err.Error() != h.warned:
		h.warned = err.Error()
		h.log.Warn("cannot put back all that was lost when the adapter's switch changed; trying on", "adapter", host.Name, "error", err)
	}
	return nil
}

// settle forgets what was before when it has been so again for a while: Windows may still be at work.
func (h *home) settle(host hns.Adapter) error {
	if !passed(&h.whole, h.pace.Rest) {
		return nil
	}
	h.log.Info("the host's addresses, routes and DNS servers are as they were", "adapter", host.Name)
	return h.forget()
}

func (h *home) forget() error {
	return h.write(func(j *journal) { j.Before = nil })
}
