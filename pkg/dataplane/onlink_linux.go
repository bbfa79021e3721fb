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
// try returns the hop of the i-th entry and the message to send for it; errs are put right.
func (c *conn) overrule(errs []error, try func(i int) (hop, message)) {
	var refused []int
	var add, again, remove []message
	for i, err := range errs {
		if !errors.Is(err, unix.EINVAL) {
			continue
		}
		h, m := try(i)
		if !h.Onlink || !h.Via.Is6() {
			continue
		}
		r := kernelRoute{
			key:      routeKey{netip.PrefixFrom(h.Via, h.Via.BitLen()), defaultMetric(h.Via)},
			hop:      hop{Index: h.Index},
			protocol: protocolOurs,
		}
		refused = append(refused, i)
		add = append(add, routeMessage(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, r))
		again = append(again, m)
		remove = append(remove, routeMessage(unix.RTM_DELROUTE, 0, r))
	}
	if len(refused) == 0 {
		return
	}
	c.batch(add)
	now := c.batch(again)
	for j, i := range refused {
		errs[i] = nil
		if now != nil {
			errs[i] = now[j]
		}
	}
	c.batch(remove) // one that stays carries our protocol and is not wanted: the next pass deletes it
}
