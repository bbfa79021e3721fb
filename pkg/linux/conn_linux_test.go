package linux

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"flannel/internal/test/nstest"
	"flannel/pkg/linux/rtnetlink"
)

// A list of which the beginning alone was received is still under way for the kernel, which refuses to begin another.
func TestListAfterOneThatWasGivenUp(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		const routes = 5000
		c, err := rtnetlink.Dial(unix.NETLINK_ROUTE)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close() //nolint:errcheck // only read from
		errs := c.Batch(routes, func(m rtnetlink.Message, i int) rtnetlink.Message {
			dst := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 32)
			return writeRoute(m, unix.RTM_NEWROUTE, unix.NLM_F_CREATE, kernelRoute{key: routeKey{Dst: dst}, hop: hop{Blackhole: true}, protocol: protocolOurs})
		})
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		var none scopePointer
		none.Store(&scope{everything: true})
		store := newRouteStore(newNexthopStore(c, &none, ""))
		faults := nstest.NewFaults(t)
		faults.Fail(3, unix.ENOBUFS) // sent, received once
		if _, err := store.List(t.Context()); err == nil {
			t.Fatal("a list that was not received is no error")
		}
		faults.Fail(0, 0)
		all, err := store.List(t.Context())
		if err != nil || len(all) != routes {
			t.Errorf("%d routes (%v), want %d", len(all), err, routes)
		}
	})
}
