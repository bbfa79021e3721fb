package rtnetlink

import (
	"testing"

	"golang.org/x/sys/unix"

	"flannel/internal/test/nstest"
)

// Of a family that the kernel does not have, such as IPv6 after ipv6.disable=1, it lists the routes of all others.
func TestDumpRoutesOfUnknownFamily(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		c, err := Dial(unix.NETLINK_ROUTE)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close() //nolint:errcheck // only read from
		sh(t, "ip link set lo up; ip route add 10.5.7.0/24 dev lo")
		const unknown = 55
		for family, want := range map[uint8]int{unix.AF_INET: 1, unknown: 0} {
			n := 0
			err := c.DumpRoutes(family, func() { n = 0 }, func([]byte) error { n++; return nil })
			if err != nil || n != want {
				t.Errorf("family %d: %d routes (%v), want %d", family, n, err, want)
			}
		}
	})
}
