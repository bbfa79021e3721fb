package underlay

import (
	"context"
	"time"

	"flannel/pkg/reconcile"
)

// coalesceDelay is the pause between the first of a burst of changes and the
// notification. When an interface comes up, for example, messages about its
// link, addresses and routes follow each other, and one Snapshot serves them all.
const coalesceDelay = 50 * time.Millisecond

// Coalesce returns a channel that receives one value for all events within 50 ms after the first,
// until ctx ends. It is never closed.
func Coalesce(ctx context.Context, events <-chan struct{}) <-chan struct{} {
	changed := make(chan struct{}, 1)
	r := reconcile.Runner{
		Wakes: []<-chan struct{}{events},
		Quiet: coalesceDelay,
		Later: true,
		Work:  func(context.Context) (time.Duration, error) { reconcile.Notify(changed); return 0, nil },
	}
	go r.Run(ctx)
	return changed
}
