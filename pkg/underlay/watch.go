package underlay

import (
	"context"
	"fmt"
	"time"

	"flannel/pkg/hns"
)

// settle is how long further changes are waited for before one is told: they come in bursts.
const settle = 50 * time.Millisecond

// WatchStack tells that what FromStack reads may have changed, in the manner of Watch.
func WatchStack(ctx context.Context, stack hns.Stack) (<-chan struct{}, error) {
	raw, changed := make(chan struct{}, 1), make(chan struct{}, 1)
	stop, err := stack.Watch(func() { poke(raw) })
	if err != nil {
		return nil, fmt.Errorf("watch adapters: %w", err)
	}
	context.AfterFunc(ctx, stop)
	go coalesce(ctx, raw, changed)
	return changed, nil
}

func coalesce(ctx context.Context, raw <-chan struct{}, changed chan<- struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-raw:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(settle):
		}
		select {
		case <-raw:
		default:
		}
		poke(changed)
	}
}

// poke leaves one value in a channel of capacity 1.
func poke(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
