package dataplane

import (
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"
)

// overrule tries once more what the kernel refused because, to its knowledge, an IPv6 gateway is on another link than
// we say. It looks the gateway up even if it is "onlink", and finds the route that is about to be replaced (a peer's
// that was reached without a tunnel before), or a wider one that an operator has set. A route to the gateway alone,
// there for this moment, makes the kernel believe us, and spares us to delete a route before the new one is there.
// hopOf is that of the i-th entry, write appends the message to send for it; errs are put right.
func (c *conn) overrule(errs []error, hopOf func(i int) hop, write func(m message, i int) message) {
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
	toGateway := func(m message, i int, kind, flags uint16) message {
		h := hopOf(i)
		return m.route(kind, flags, kernelRoute{
			key:      routeKey{netip.PrefixFrom(h.Via, h.Via.BitLen()), defaultMetric(h.Via)},
			hop:      hop{Index: h.Index},
			protocol: protocolOurs,
		})
	}
	c.batch(each(refused, func(m message, i int) message {
		return toGateway(m, i, unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	}))
	now := c.batch(each(refused, write))
	for j, i := range refused {
		errs[i] = nil
		if now != nil {
			errs[i] = now[j]
		}
	}
	// One that stays carries our protocol and is not wanted: whoever lists the routes next deletes it.
	c.batch(each(refused, func(m message, i int) message { return toGateway(m, i, unix.RTM_DELROUTE, 0) }))
}
