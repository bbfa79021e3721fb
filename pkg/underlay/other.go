//go:build !linux

package underlay

import (
	"context"
	"errors"
	"fmt"
	"runtime"
)

var errUnsupported = fmt.Errorf("reading the interfaces of %s is not supported yet: %w", runtime.GOOS, errors.ErrUnsupported)

// Read is not there yet for this operating system.
func Read(Options) (Snapshot, error) { return Snapshot{}, errUnsupported }

// Watch is not there yet for this operating system.
func Watch(context.Context) (<-chan struct{}, error) { return nil, errUnsupported }
