package hns

import (
	"context"
	"errors"
	"time"
)

// Changes tells that networks, or HNS itself, may have come or gone: the channel receives one value for any number of
// changes; it is never closed. Where HNS does not tell, it receives one whenever Timing.Poll has passed.
func (c *Client) Changes(ctx context.Context) <-chan struct{} {
	told := make(chan struct{}, 1)
	go c.listen(ctx, func() {
		select {
		case told <- struct{}{}:
		default:
		}
	})
	return told
}

// listen ends with ctx.
func (c *Client) listen(ctx context.Context, tell func()) {
	for {
		stop, err := run(ctx, c, "ask HNS to tell of changes", c.timing.Query,
			func() (func(), error) { return c.calls.Notify(tell) }, func(stop func()) { stop() })
		if err == nil {
			tell() // what changed before we listened
			context.AfterFunc(ctx, stop)
			return
		}
		// Poll. An HNS that was not up is asked again each time; one that cannot tell is not.
		for again := !errors.Is(err, ErrUnsupported); ; {
			select {
			case <-ctx.Done():
				return
			case <-time.After(c.timing.Poll):
			}
			tell()
			if again {
				break
			}
		}
	}
}
