//go:build kernels

package linux

import (
	"net/netip"
	"testing"

	"flannel/internal/test/nstest"
	"flannel/pkg/dataplane"
)

// The tests of this file need the module ipip, which not every kernel has.

func TestIPIPOfAnotherNetwork(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		devices := func(mtu int, address string) []dataplane.Device {
			return []dataplane.Device{{Name: "eth0", Kind: dataplane.Existing{}},
				{Name: "flannel.ipip", Kind: dataplane.IPIP{Tunnel: dataplane.Tunnel{MTU: mtu, Parent: "eth0",
					Local: netip.MustParseAddr("192.168.100.1"), Addr: []netip.Prefix{netip.MustParsePrefix(address)}}}}}
		}
		m := newMachine(t)
		m.devices, m.state.Paths = devices(1480, "10.5.1.0/32"), nil
		checkOtherNetwork(t, m, newSecond(t, devices(1400, "10.9.1.0/32")...), "flannel.ipip", "ip -d -o link show dev flannel.ipip; ip -o -4 addr show dev flannel.ipip")
	})
}
