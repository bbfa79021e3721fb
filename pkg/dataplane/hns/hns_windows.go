package hns

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"flannel/pkg/dataplane"
	"flannel/pkg/dataplane/driver"
	"flannel/pkg/hns"
)

// timing keeps a pass from waiting longer for HNS than other things can: what takes longer goes on by itself, no other
// call is made meanwhile, and what came of it the next pass finds.
var timing = hns.Timing{Query: 3 * time.Second, Change: 5 * time.Second}

// Open opens HNS and the IP stack and begins to watch them. The caller closes it.
func Open(opts driver.Options) (*Driver, error) {
	calls, err := hns.Open()
	if err != nil {
		return nil, err
	}
	stack, err := hns.OpenStack()
	if err != nil {
		return nil, err
	}
	return New(Options{Options: opts}, hns.NewClient(calls, timing), stack), nil
}

// Cleanup removes every HNS network and host route that is ours, and returns them as text for a person; with dryRun it
// only lists them. networks are the pod networks, if known: routes are told by them. What cannot be removed is in the
// error, and blocks nothing else.
func Cleanup(ctx context.Context, opts driver.Options, networks []netip.Prefix, dryRun bool) (removed []string, err error) {
	d, err := Open(opts)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	return d.cleanup(ctx, networks, dryRun)
}

// Prepare binds a virtual switch to the adapter of dev, a Switch, unless it has one, and waits until the host has its
// addresses, routes and DNS servers again. told hears what is waited for, whenever that is something else. What has not
// come when ctx ends is the error.
func Prepare(ctx context.Context, opts driver.Options, dev dataplane.Device, told func(error)) (p dataplane.Prepared, err error) {
	d, err := Open(opts)
	if err != nil {
		return dataplane.Prepared{}, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	return d.prepare(ctx, dev, told)
}
