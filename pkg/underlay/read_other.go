//go:build !linux

package underlay

import (
	"context"

	"flannel/pkg/windows/hns"
)

// Read reads a Snapshot of a Windows machine.
func Read(o Options) (Snapshot, error) {
	stack, err := hns.OpenStack()
	if err != nil {
		return Snapshot{}, err
	}
	return FromStack(stack, o)
}

// Watch returns a channel that receives a value when the result of Read may
// have changed: one value for any number of changes, and none after ctx has
// ended. It is never closed. No change after the return of Watch is missed.
func Watch(ctx context.Context) (<-chan struct{}, error) {
	stack, err := hns.OpenStack()
	if err != nil {
		return nil, err
	}
	return WatchStack(ctx, stack)
}
