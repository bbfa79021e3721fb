package underlay

import (
	"context"
	"fmt"
	"time"

	"flannel/pkg/reconcile/runner"
	"flannel/pkg/windows/hns"
)

// coalesceDelay is the pause between the first of a burst of changes and the
// notification. When an interface comes up, for example, messages about its
// link, addresses and routes follow each other, and one Read serves them all.
const coalesceDelay = 50 * time.Millisecond

// WatchStack is Watch for a Snapshot read by FromStack.
func WatchStack(ctx context.Context, stack hns.Stack) (<-chan struct{}, error) {
	events, changed := make(chan struct{}, 1), make(chan struct{}, 1)
	stop, err := stack.Watch(func() { runner.Notify(events) })
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
	r := runner.Runner{
		Wakes: []<-chan struct{}{events},
		Quiet: coalesceDelay,
		Later: true,
		Work:  func(context.Context) (time.Duration, error) { runner.Notify(changed); return 0, nil },
	}
	r.Run(ctx)
}
