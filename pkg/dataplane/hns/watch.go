package hns

import (
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"flannel/pkg/hns"
)

// sighted is a network as a pass found it.
type sighted struct {
	name  string
	print uint64 // of all that matters
}

// sight notes what our network is like, so that the next look sees a change.
func (d *Driver) sight() {
	s := sighted{name: d.device().name}
	if d.network != nil {
		s.print = fingerprint(*d.network)
	}
	d.seen.Store(&s)
}

func fingerprint(n hns.Network) uint64 {
	h := fnv.New64a()
	fmt.Fprintln(h, n.ID, n.Subnets)
	for _, p := range n.Policies {
		fmt.Fprintf(h, "%s %s\n", p.Type, p.Settings)
	}
	return h.Sum64()
}

// watch hears of changes, and looks for those that nobody tells of: HNS does not say that a policy went.
func (d *Driver) watch(ctx context.Context) {
	moved := make(chan struct{}, 1)
	stop, err := d.stack.Watch(func() { poke(moved) })
	if err != nil {
		d.opts.Log.Warn("Windows does not tell of changed routes and addresses; looking now and then", "error", err)
	} else {
		defer stop()
	}
	told := d.client.Changes(ctx)
	looked := time.Now()
	tick := time.NewTicker(d.pace.Wait)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-told:
			d.networksDirty.Store(true)
			d.wake()
		case <-moved:
			d.adaptersDirty.Store(true)
			d.routes.Relist()
			d.wake()
		case <-tick.C:
			d.mendAlone(ctx)
			if d.waits.Load() {
				d.wake()
			}
			if time.Since(looked) >= d.pace.Poll {
				d.look(ctx)
				looked = time.Now()
			}
		}
	}
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// mendAlone puts back what an earlier run lost, or this one, while nobody calls Ensure: the daemon may be waiting for an
// API that it cannot reach without the address.
func (d *Driver) mendAlone(ctx context.Context) {
	if !d.home.pending() {
		return
	}
	networks, err := d.client.Networks(ctx)
	if err == nil {
		err = d.home.mend(networks)
	}
	if err != nil {
		d.opts.Log.Debug("the host's addresses", "state", err)
	}
}

// look compares our network with what the last pass found.
func (d *Driver) look(ctx context.Context) {
	seen := d.seen.Load()
	if seen == nil || seen.name == "" {
		return
	}
	networks, err := d.client.Networks(ctx)
	now := sighted{name: seen.name}
	if i := slices.IndexFunc(networks, func(n hns.Network) bool { return n.Name == seen.name }); i >= 0 {
		now.print = fingerprint(networks[i])
	}
	if err != nil || now != *seen {
		d.networksDirty.Store(true)
		d.wake()
	}
}
