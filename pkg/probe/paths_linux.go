package probe

import (
	"context"
	"errors"
	"sync"

	"flannel/pkg/doctor"
	"flannel/pkg/probe/path"
	"flannel/pkg/status"
)

// maxTested limits the peers to which packets are sent.
const maxTested = 3

// timeoutShare is how many answers a test of a path waits for, one after the other, and
// some more.
const timeoutShare = 5

// paths sends packets to the peer that was asked for, or else to some, and returns what
// came of them. Without a daemon that knows peers there are none.
func paths(ctx context.Context, o Options) ([]doctor.Path, error) {
	report, err := status.Ask(ctx, status.Socket(o.SubnetFile))
	if errors.Is(err, status.ErrNotRunning) || errors.Is(err, status.ErrNoAnswer) || err == nil && report.Node == nil {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	peers := path.Choose(report.Peers, maxTested)
	if o.Peer != "" {
		peer, err := path.Find(report.Peers, o.Peer)
		if err != nil {
			return nil, err
		}
		peers = []status.Peer{peer}
	}
	var targets []path.Target
	for _, p := range peers {
		targets = append(targets, path.Targets(*report.Node, p, o.Peer != "")...)
	}
	tested := make([]doctor.Path, len(targets))
	var running sync.WaitGroup
	for i, t := range targets {
		running.Go(func() { tested[i] = path.Test(ctx, t, o.Timeout/timeoutShare) })
	}
	running.Wait()
	return tested, nil
}
