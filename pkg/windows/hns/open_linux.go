package hns

import (
	"fmt"
	"runtime"
)

var errNotWindows = fmt.Errorf("%s has no Host Networking Service: %w", runtime.GOOS, ErrUnsupported)

// Open returns an error, because only Windows has HNS.
func Open() (Calls, error) { return nil, errNotWindows }

// OpenStack returns an error, because only Windows has the IP Helper API.
func OpenStack() (Stack, error) { return nil, errNotWindows }

// OpenFirewall returns an error, because only Windows has the Windows Firewall.
func OpenFirewall() (Firewall, error) {
	return nil, fmt.Errorf("%s has no Windows Firewall: %w", runtime.GOOS, ErrUnsupported)
}
