package windows

import (
	"net/netip"

	"flannel/pkg/dataplane"
)

// What Windows does not have: a guard of the pod network, packets that this process forwards, tunnels that know their
// peers, and bridges of the CNI plugin bridge.

// Guarded implements dataplane.Dataplane.
func (*Driver) Guarded() (g dataplane.Guarded, exists bool) { return g, false }

// Forwarded implements dataplane.Dataplane.
func (*Driver) Forwarded() (f dataplane.Forwarded, ever bool) { return f, false }

// Traffic implements dataplane.Dataplane.
func (*Driver) Traffic() map[netip.Prefix]dataplane.Traffic { return nil }

// LeaveSubnets implements dataplane.Dataplane.
func (*Driver) LeaveSubnets([]netip.Prefix, string) error { return nil }
