package linux

import (
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"flannel/pkg/rtnetlink"
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
// hopOf returns the hop of entry i, write appends its message; errs are updated.
func retryOnlink(c *rtnetlink.Conn, errs []error, hopOf func(i int) hop, write func(m rtnetlink.Message, i int) rtnetlink.Message) {
	var refused []int
	for i, err := range errs {
		if !errors.Is(err, unix.EINVAL) {
			continue
		}
		if h := hopOf(i); h.Onlink && h.Via.Is6() {
			refused = append(refused, i)
		}
	}
	if len(refused) == 0 {
		return
	}
	toGateway := func(m rtnetlink.Message, i int, kind, flags uint16) rtnetlink.Message {
		h := hopOf(i)
		return writeRoute(m, kind, flags, kernelRoute{
			key:      routeKey{netip.PrefixFrom(h.Via, h.Via.BitLen()), defaultMetric(h.Via)},
			hop:      hop{Index: h.Index},
			protocol: protocolOurs,
		})
	}
	c.Batch(each(refused, func(m rtnetlink.Message, i int) rtnetlink.Message {
		return toGateway(m, i, unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	}))
	retried := c.Batch(each(refused, write))
	for j, i := range refused {
		errs[i] = nil
		if retried != nil {
			errs[i] = retried[j]
		}
	}
	// If this fails, the next list finds a route of ours that is not wanted.
	c.Batch(each(refused, func(m rtnetlink.Message, i int) rtnetlink.Message { return toGateway(m, i, unix.RTM_DELROUTE, 0) }))
}
