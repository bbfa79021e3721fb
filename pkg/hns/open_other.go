//go:build !windows

package hns

import (
	"fmt"
	"runtime"
)

var errNotWindows = fmt.Errorf("%s has no Host Networking Service: %w", runtime.GOOS, ErrUnsupported)

// Open refuses: only Windows has an HNS.
func Open() (Calls, error) { return nil, errNotWindows }

// OpenStack refuses: only Windows has the IP Helper API.
func OpenStack() (Stack, error) { return nil, errNotWindows }
