package probe

import (
	"context"
	"errors"
	"sync"

	"flannel/pkg/doctor"
	"flannel/pkg/probe/path"
	"flannel/pkg/status"
)

// timeoutShare is how many answers a test of a path waits for, one after the other, and
// some more.
const timeoutShare = 5

// paths sends packets to the peer that was asked for, or else to some, and returns what
// came of them. Without a daemon that knows peers there are none. An error makes the Fact
// unknown.
func paths(ctx context.Context, o Options) ([]doctor.Path, error) {
	report, err := status.Ask(ctx, status.Socket(o.SubnetFile))
	if errors.Is(err, status.ErrNotRunning) || errors.Is(err, status.ErrNoAnswer) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	targets, err := path.Targets(report, o.Peer)
	if err != nil {
		return nil, err
	}
	tested := make([]doctor.Path, len(targets))
	var running sync.WaitGroup
	for i, t := range targets {
		running.Go(func() { tested[i] = path.Test(ctx, t, o.Timeout/timeoutShare) })
	}
	running.Wait()
	return tested, nil
}
