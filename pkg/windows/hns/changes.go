package hns

import (
	"context"
	"errors"

	"flannel/pkg/reconcile"
)

// Changes returns a channel that receives a value after networks were created or deleted, or after the service stopped
// or started: one value for any number of changes. If HNS has no notifications, it receives a value every Timing.Poll.
// The channel is never closed.
func (c *Client) Changes(ctx context.Context) <-chan struct{} {
	changes := make(chan struct{}, 1)
	go c.listen(ctx, func() { reconcile.Notify(changes) })
	return changes
}

// listen calls changed after changes until ctx ends. While HNS refuses the subscription, it polls. It subscribes again
// after each Timing.Poll, except if HNS has no notifications at all (ErrUnsupported).
func (c *Client) listen(ctx context.Context, changed func()) {
	for supported := true; ; {
		if supported {
			stop, err := run(ctx, c, "subscribe to HNS notifications", c.timing.Query,
				func() (func(), error) { return c.calls.Notify(changed) }, func(stop func()) { stop() })
			if err == nil {
				changed() // for changes before the subscription
				context.AfterFunc(ctx, stop)
				return
			}
			supported = !errors.Is(err, ErrUnsupported)
		}
		if reconcile.Pause(ctx, c.timing.Poll); ctx.Err() != nil {
			return
		}
		changed()
	}
}
