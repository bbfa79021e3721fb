package windows

import (
	"net/netip"

	"flannel/pkg/dataplane"
)

// What Windows does not have: a guard of the pod network, packets that this process forwards, tunnels that know their
// peers, and bridges of the CNI plugin bridge.

// Guarded implements dataplane.Dataplane.
func (*Driver) Guarded() *dataplane.GuardReport { return nil }

// Forwarded implements dataplane.Dataplane.
func (*Driver) Forwarded() *dataplane.Forwarded { return nil }

// Traffic implements dataplane.Dataplane.
func (*Driver) Traffic() map[netip.Prefix]dataplane.TunnelReport { return nil }

// LeaveSubnets implements dataplane.Dataplane.
func (*Driver) LeaveSubnets([]netip.Prefix, string) error { return nil }
