//go:build !linux

package underlay

import (
	"context"

	"flannel/pkg/hns"
)

// Read takes a Snapshot of the machine, if it runs Windows.
func Read(o Options) (Snapshot, error) {
	stack, err := hns.OpenStack()
	if err != nil {
		return Snapshot{}, err
	}
	return FromStack(stack, o)
}

// Watch tells that what Read reads may have changed: the channel receives one value for any number of changes, and
// nothing more once ctx has ended; it is never closed. What changes after Watch has returned is not missed.
func Watch(ctx context.Context) (<-chan struct{}, error) {
	stack, err := hns.OpenStack()
	if err != nil {
		return nil, err
	}
	return WatchStack(ctx, stack)
}
