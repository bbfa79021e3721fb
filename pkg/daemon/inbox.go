package daemon

import (
	"context"
	"sync"

	"flannel/pkg/changes"
	"flannel/subnet"
)

// inbox holds what other goroutines hand to the loop, always the latest, and wakes it.
type inbox struct {
	changed chan struct{} // to the loop
	publish chan struct{} // to the publisher

	mu        sync.Mutex
	config    []byte
	fresh     bool // config has not been looked at
	set       subnet.Set
	leases    changes.Pending[subnet.Lease] // how set differs from the one that was taken last
	complete  bool                          // set has come
	described *subnet.Lease                 // to be published
	published *subnet.Lease                 // what the others see
	refused   error                         // why the last try to publish failed
}

func newInbox() *inbox {
	return &inbox{changed: make(chan struct{}, 1), publish: make(chan struct{}, 1)}
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (in *inbox) setConfig(raw []byte) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.config, in.fresh = raw, true
	poke(in.changed)
}

// newConfig returns a configuration that was not looked at yet.
func (in *inbox) newConfig() (raw []byte, fresh bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	fresh, in.fresh = in.fresh, false
	return in.config, fresh
}

// forget is for a node that joins again: all but the configuration belongs to its former lease.
func (in *inbox) forget() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.fresh = in.config != nil
	in.set, in.leases, in.complete = subnet.Set{}, nil, false
	in.described, in.published, in.refused = nil, nil, nil
}

func (in *inbox) setPeers(s subnet.Set) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, c := range s.Changes {
		in.leases.Add(c.Either().Name, c)
	}
	in.set, in.complete = s, true
	poke(in.changed)
}

// peers returns the latest set.
func (in *inbox) peers() (s subnet.Set, complete bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.set, in.complete
}

// takePeers returns the latest set with how it differs from the one that it returned before, however many came between.
func (in *inbox) takePeers() (s subnet.Set, complete bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	s = in.set
	s.Changes = in.leases.Take(subnet.Compare)
	return s, in.complete
}

// tell has a lease published unless the others see it already, and says whether they do.
func (in *inbox) tell(l subnet.Lease) (seen bool, refused error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.described == nil || !in.described.Equal(&l) {
		in.described = &l
		poke(in.publish)
	}
	return in.published != nil && in.published.Equal(&l), in.refused
}

// publish keeps what the others see up to date. It is a task of its own, because an outage of the store may last for
// hours and must not keep the node from repairing its network.
func (d *Daemon) publish(ctx context.Context, in *inbox) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-in.publish:
		}
		in.mu.Lock()
		if in.described == nil { // a note from before the last forget
			in.mu.Unlock()
			continue
		}
		l := *in.described
		seen := in.published != nil && in.published.Equal(&l)
		in.mu.Unlock()
		if seen {
			continue
		}
		err := d.Manager.Publish(ctx, l)
		if ctx.Err() != nil {
			return nil
		}
		in.mu.Lock()
		if in.refused = err; err == nil {
			in.published = &l
			d.Log.Info("published how to reach this node", "lease", &l)
		} else {
			in.described = nil // try again with the next pass
		}
		poke(in.changed)
		in.mu.Unlock()
	}
}
