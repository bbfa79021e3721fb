package linux

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"flannel/pkg/dataplane"
	"flannel/pkg/linux/guard"
)

// guarding is the guard of the pod network: rules that drop, or only count, packets that no
// node and no pod of the network would send. That it does not work must not disconnect
// pods: unless it has to enforce, its errors are only logged and in Guarded. It connects
// the driver with package guard, which has the rules. The loop calls its methods, except
// observeAddr (the watcher), report (any goroutine) and relist (the watcher, too).
type guarding struct {
	opts    dataplane.Options
	table   *guard.Guard // the table of rules in the kernel; nil: it could not be opened
	openErr error        // why not

	config            *guard.Config // of the last apply; nil: no guard is wanted
	applied, unpruned error         // the results of the last apply and prune

	mu    sync.Mutex            // of on and state
	on    bool                  // a guard is wanted, by the last apply
	state dataplane.GuardReport // of the last apply and prune, without what report adds

	waiting string // for what the guard waits before it enforces (a trial), as logged last
}

// causeUnguarded is a cause in the log.
const causeUnguarded = "unguarded"

// newGuarding connects to the kernel's nf_tables. If it cannot, the error is openErr, which matters
// only when a guard is wanted.
func newGuarding(opts dataplane.Options, notify func()) *guarding {
	g := &guarding{opts: opts}
	g.table, g.openErr = guard.New(opts.Log, opts.Instance, notify)
	return g
}

func (g *guarding) close() error {
	if g.table == nil {
		return nil
	}
	return g.table.Close()
}

func (g *guarding) relist() {
	if g.table != nil {
		g.table.Relist()
	}
}

func (g *guarding) reset() {
	if g.table != nil {
		g.table.Reset()
	}
}

// put wants or drops the peer at the end of a path, as the verb says; Driver.fill calls it.
func (g *guarding) put(verb dataplane.Verb, p *dataplane.Path) {
	if g.table != nil {
		g.table.Put(verb, p)
	}
}

// observeAddr handles an address that was added to a device that Ensure was not given, or deleted from
// one: it may be a pod's interface. It reports whether a pass is due.
func (g *guarding) observeAddr(ip netip.Addr) bool { return g.table != nil && g.table.ObserveAddr(ip) }

// judges reports whether there may be rules in the kernel, which may drop packets of peers that the
// guard's sets lack.
func (g *guarding) judges() bool { return g.table != nil && g.table.Judges() }

// drops reports whether the rules drop what the peer at the end of a path sends, since the
// sets lack it.
func (g *guarding) drops(p *dataplane.Path) bool { return g.table != nil && g.table.Drops(p) }

// apply makes the guard what c says; nil: there is none. interfaces returns the names of the
// interfaces of pods. If c.Enforce is set, Driver.Apply returns the error, holds back the paths of
// peers that the rules would drop, and is called again. Otherwise the result is nil, and package
// guard notifies when a retry is due.
func (g *guarding) apply(ctx context.Context, c *guard.Config, interfaces func() ([]string, error)) error {
	err := g.openErr
	if g.table != nil {
		err = g.table.Apply(ctx, g.opts, c, interfaces)
	}
	if c == nil && err != nil && g.table == nil { // without tables, there is nothing to delete
		err = nil
	}
	g.config, g.applied = c, err
	if c == nil && err == nil { // the peers are gone with the table
		g.unpruned = nil
	}
	g.record()
	return g.required(err)
}

// required returns err if the guard has to enforce, else nil.
func (g *guarding) required(err error) error {
	if err == nil || g.config == nil || !g.config.Enforce {
		return nil
	}
	return fmt.Errorf("guard: %w", err)
}

// record keeps the results of each apply and prune for Guarded, and logs what differs from those before.
func (g *guarding) record() {
	state := dataplane.GuardReport{}
	last := "" // describes a packet, only for Guarded: whoever sends packets must not decide what is logged
	if g.table != nil {
		state.Enforce, state.Waiting, last = g.table.Enforces()
	}
	if err := errors.Join(g.applied, g.unpruned); err != nil {
		state.Problem = err.Error()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if state.Problem != g.state.Problem && state.Problem != "" {
		g.opts.Log.Warn("the guard of the pod network does not work as it should", "cause", causeUnguarded, "problem", state.Problem)
	}
	if on := g.config != nil; on != g.on || state.Enforce != g.state.Enforce || state.Waiting != g.waiting {
		g.opts.Log.Info("guard of the pod network", "on", on, "enforces", state.Enforce, "waiting", state.Waiting)
	}
	g.waiting = state.Waiting
	if last != "" {
		state.Waiting += "; the last one: " + last
	}
	g.on, g.state = g.config != nil, state
}

// prune removes peers that are gone. Apply calls it where entries may be deleted. Its error is nil
// unless the guard has to enforce, like that of apply.
func (g *guarding) prune(ctx context.Context) error {
	if g.table == nil {
		return nil
	}
	if g.unpruned = g.table.Prune(ctx, g.opts); g.unpruned != nil {
		g.unpruned = fmt.Errorf("former peers may still be let through: %w", g.unpruned)
	}
	g.record()
	return g.required(g.unpruned)
}

// leave has l remove the table, whose peers nobody would keep up to date, for Cleanup and Handback.
func (g *guarding) leave(l *leaving) error {
	if g.table == nil {
		if errors.Is(g.openErr, unix.EPROTONOSUPPORT) { // a kernel without nfnetlink has no tables
			return nil
		}
		return g.openErr
	}
	tables, err := g.table.Remove(true) // dry run: their descriptions, for l
	if err != nil {
		return err
	}
	for _, table := range tables {
		l.will("remove", "%s", table)
	}
	l.step(func(context.Context) error {
		_, err := g.table.Remove(false) // no dry run
		return err
	})
	return nil
}

// Guarded implements dataplane.Dataplane.
func (d *Driver) Guarded() *dataplane.GuardReport { return d.guard.report() }

func (g *guarding) report() *dataplane.GuardReport {
	g.mu.Lock()
	state, on := g.state, g.on
	g.mu.Unlock()
	if !on {
		return nil
	}
	if g.table != nil {
		state.Packets, state.Dropped, state.Joined = g.table.Counts()
		state.OfPeer = g.table.FoundOfPeer(time.Now())
	}
	return &state
}

// guardConfig returns what the guard has to know, or nil if there is none: others route
// (the backends alloc and extension), or the guard is off.
func (d *Driver) guardConfig(links dataplane.Links, s dataplane.State) *guard.Config {
	if s.Guard == nil || s.Unrouted {
		return nil
	}
	c := &guard.Config{Enforce: s.Guard.Enforce, Trial: s.Guard.Trial, Sources: s.Guard.Sources, Networks: s.Networks, Subnets: s.Subnets, Routed: true}
	for _, dev := range d.desired {
		if _, exists := links[dev.Name]; isTunnel(dev) && exists { // without a link, it may be another flanneld's
			c.Tunnels = append(c.Tunnels, dev.Name)
		}
		if k, err := d.kindOf(dev); err == nil {
			k.configureGuard(c, dev)
		}
		// Keys: the tunnel itself checks who sends. The devices of both address families have the same traits.
		if t := dataplane.TraitsOf(dev.Kind); t.Protocol != 0 && !t.Keys {
			c.Outer = t
		}
	}
	return c
}
