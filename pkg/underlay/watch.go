package underlay

import (
	"context"
	"fmt"
	"time"

	"flannel/pkg/windows/hns"
)

// coalesceDelay is the pause between the first of a burst of changes and the
// notification. When an interface comes up, for example, messages about its
// link, addresses and routes follow each other, and one Read serves them all.
const coalesceDelay = 50 * time.Millisecond

// WatchStack is Watch for a Snapshot read by FromStack.
func WatchStack(ctx context.Context, stack hns.Stack) (<-chan struct{}, error) {
	events, changed := make(chan struct{}, 1), make(chan struct{}, 1)
	stop, err := stack.Watch(func() { notify(events) })
	if err != nil {
		return nil, fmt.Errorf("watch adapters: %w", err)
	}
	context.AfterFunc(ctx, stop)
	go coalesce(ctx, events, changed)
	return changed, nil
}

// coalesce sends one value to changed for all events within coalesceDelay,
// until ctx ends.
func coalesce(ctx context.Context, events <-chan struct{}, changed chan<- struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-events:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(coalesceDelay):
		}
		// Take the event of those that arrived during the pause before notifying: one
		// that arrives afterwards causes another notification, so none is lost.
		select {
		case <-events:
		default:
		}
		notify(changed)
	}
}

// notify sends a value to a channel of capacity 1, unless it already holds one.
func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
