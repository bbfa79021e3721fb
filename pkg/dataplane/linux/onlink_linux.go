package linux

import (
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"flannel/pkg/rtnetlink"
)

// overrule tries once more what the kernel refused because, to its knowledge, an IPv6 gateway is on another link than
// we say. It looks the gateway up even if it is "onlink", and finds the route that is about to be replaced (a peer's
// that was reached without a tunnel before), or a wider one that an operator has set. A route to the gateway alone,
// there for this moment, makes the kernel believe us, and spares us to delete a route before the new one is there.
// hopOf is that of the i-th entry, write appends the message to send for it; errs are put right.
func overrule(c *rtnetlink.Conn, errs []error, hopOf func(i int) hop, write func(m rtnetlink.Message, i int) rtnetlink.Message) {
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
	now := c.Batch(each(refused, write))
	for j, i := range refused {
		errs[i] = nil
		if now != nil {
			errs[i] = now[j]
		}
	}
	// One that stays carries our protocol and is not wanted: whoever lists the routes next deletes it.
	c.Batch(each(refused, func(m rtnetlink.Message, i int) rtnetlink.Message { return toGateway(m, i, unix.RTM_DELROUTE, 0) }))
}
