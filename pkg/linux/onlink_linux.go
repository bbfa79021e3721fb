package linux

import (
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"flannel/pkg/linux/rtnetlink"
)

// retryOnlink retries entries that the kernel refused because it has a route to
// their IPv6 gateway through another link. It looks up the gateway even if the
// entry says "onlink". Example: the peer 2001:db8:2::/64 was reached without a
// tunnel, and is now to be reached through flannel-v6.1:
//
//	existing   2001:db8:2::/64 via fd00::3 dev eth0
//	wanted     2001:db8:2::/64 via 2001:db8:2:: dev flannel-v6.1 onlink
//	refused    EINVAL: the lookup of 2001:db8:2:: finds the existing route, eth0
//
// retryOnlink adds the route 2001:db8:2::/128 dev flannel-v6.1, retries, and
// deletes that route again. Deleting the existing route first would lose packets.
//
// The stores of routes and nexthop objects call it in Set. hopOf returns the hop of an entry, write
// appends its message. errs are the errors of all entries (nil: none), which retryOnlink updates.
func retryOnlink[E any](
	c *rtnetlink.Conn, entries []E, errs []error, hopOf func(E) hop, write func(rtnetlink.Message, E) rtnetlink.Message,
) {
	var refused []E
	var owners []int // indexes of refused in entries
	for i, err := range errs {
		if h := hopOf(entries[i]); errors.Is(err, unix.EINVAL) && h.Onlink && h.Via.Is6() {
			refused, owners = append(refused, entries[i]), append(owners, i)
		}
	}
	if len(refused) == 0 {
		return
	}
	toGateways := func(kind, flags uint16) {
		batch(c, refused, func(m rtnetlink.Message, e E) rtnetlink.Message {
			h := hopOf(e)
			return writeRoute(m, kind, flags, kernelRoute{
				key:      routeKey{netip.PrefixFrom(h.Via, h.Via.BitLen()), defaultMetric(h.Via)},
				hop:      hop{Index: h.Index},
				protocol: protocolOurs,
			})
		})
	}
	toGateways(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL) // what its errors mean, the retry shows
	retried := batch(c, refused, write)
	for j, i := range owners {
		errs[i] = nil
		if retried != nil {
			errs[i] = retried[j]
		}
	}
	toGateways(unix.RTM_DELROUTE, 0) // if this fails, the next list finds a route of ours that is not wanted
}
