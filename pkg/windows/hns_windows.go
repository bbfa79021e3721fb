package windows

import (
	"context"
	"errors"
	"time"

	"flannel/pkg/dataplane"
	"flannel/pkg/underlay"
	"flannel/pkg/windows/hns"
)

// timing bounds how long a pass waits for a call of HNS. A call that takes longer
// continues in the background; no other call is made meanwhile, and a later pass
// finds its result.
var timing = hns.Timing{Query: 3 * time.Second, Change: 5 * time.Second}

// Open opens HNS and the IP stack and starts to watch them. The caller closes the
// Driver.
func Open(opts dataplane.Options) (*Driver, error) {
	calls, err := hns.Open()
	if err != nil {
		return nil, err
	}
	stack, err := hns.OpenStack()
	if err != nil {
		return nil, err
	}
	return New(options{Options: opts}, hns.NewClient(calls, timing), stack), nil
}

// ReadUnderlay is UnderlayOf for this machine.
func ReadUnderlay(o underlay.Options) (underlay.Snapshot, error) {
	stack, err := hns.OpenStack()
	if err != nil {
		return underlay.Snapshot{}, err
	}
	return UnderlayOf(stack, o)
}

// WatchUnderlay is watchStack for this machine, and so for ReadUnderlay.
func WatchUnderlay(ctx context.Context, changed func()) error {
	stack, err := hns.OpenStack()
	if err != nil {
		return err
	}
	return watchStack(ctx, stack, changed)
}

// Cleanup removes every HNS network and host route that is ours, and returns
// their descriptions; with dryRun it removes nothing. s has the pod
// networks, which identify the routes; without them no route is removed. The
// error holds what could not be removed, which does not stop the rest.
func Cleanup(ctx context.Context, opts dataplane.Options, s dataplane.State, dryRun bool) (removed []string, err error) {
	d, err := Open(opts)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	return d.cleanup(ctx, s.Networks, dryRun)
}

// Prepare binds a virtual switch to the adapter of dev (a Switch), unless there is
// one, and waits until the host has its addresses, routes and DNS servers again.
// It calls report whenever it waits for something else than before. If ctx ends
// first, the error is what it waited for last.
func Prepare(ctx context.Context, opts dataplane.Options, dev dataplane.Device, report func(error)) (p dataplane.Prepared, err error) {
	d, err := Open(opts)
	if err != nil {
		return dataplane.Prepared{}, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	return d.prepare(ctx, dev, report)
}
