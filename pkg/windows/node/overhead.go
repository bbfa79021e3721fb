package node

import (
	"slices"

	"flannel/pkg/cni/conflist"
	"flannel/pkg/dataplane"
	"flannel/pkg/underlay"
)

// usualMTU is the MTU, in bytes, from which HNS subtracts the overhead, whatever the
// MTU of the adapter (microsoft/SDN#517).
const usualMTU = 1500

// encapOverhead returns the overhead with which pods get the adapter's MTU less 50,
// 0 if they get no more than that anyway.
func encapOverhead(snapshot underlay.Snapshot, s *conflist.Spec) int {
	i := slices.IndexFunc(snapshot.Interfaces, func(in underlay.Interface) bool {
		return slices.ContainsFunc(in.Addrs, func(a underlay.Addr) bool { return a.IP == s.ManagementIP })
	})
	if i < 0 {
		return 0
	}
	mtu := snapshot.Interfaces[i].MTU
	if mtu <= 0 || mtu >= usualMTU {
		return 0
	}
	return usualMTU + dataplane.TraitsOf(dataplane.VXLAN{}).Overhead(false) - mtu
}
