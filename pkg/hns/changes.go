package hns

import (
	"context"
	"errors"
	"time"
)

// Changes returns a channel that receives a value after networks were created or deleted, or after the service stopped
// or started: one value for any number of changes. If HNS has no notifications, it receives a value every Timing.Poll.
// The channel is never closed.
func (c *Client) Changes(ctx context.Context) <-chan struct{} {
	changes := make(chan struct{}, 1)
	go c.listen(ctx, func() {
		select {
		case changes <- struct{}{}:
		default:
		}
	})
	return changes
}

// listen calls notify after changes until ctx ends. While HNS refuses the subscription, it polls. It subscribes again
// after each Timing.Poll, except if HNS has no notifications at all (ErrUnsupported).
func (c *Client) listen(ctx context.Context, notify func()) {
	for {
		stop, err := run(ctx, c, "subscribe to HNS notifications", c.timing.Query,
			func() (func(), error) { return c.calls.Notify(notify) }, func(stop func()) { stop() })
		if err == nil {
			notify() // for changes before the subscription
			context.AfterFunc(ctx, stop)
			return
		}
		for retry := !errors.Is(err, ErrUnsupported); ; {
			select {
			case <-ctx.Done():
				return
			case <-time.After(c.timing.Poll):
			}
			notify()
			if retry {
				break
			}
		}
	}
}
