package linux

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"flannel/pkg/dataplane"
	"flannel/pkg/linux/rtnetlink"
	"flannel/pkg/reconcile"
)

// The stores of neighbours and of FDB entries. Both are in the kernel's neighbour tables,
// and both have struct ndmsg in their messages. A reconcile.Table calls the methods of a
// store, on the goroutine of the loop, or on that of Apply for which the loop waits (see Driver),
// or of a cleanup; see rows. What the methods return is described at reconcile.Store.

// scopePointer has what is ours (see scope) as of the last pass. The loop sets it, and the watcher
// reads it, too. It is never nil: before the first pass, the scope is empty, and so are the lists.
type scopePointer = atomic.Pointer[scope]

type (
	neighEntry = reconcile.Entry[neighKey, dataplane.MAC]
	fdbEntry   = reconcile.Entry[fdbKey, netip.Addr]
)

const lenNdmsg = 12 // bytes of struct ndmsg (linux/neighbour.h)

// neighStore holds the permanent neighbours on our tunnel devices, by address with their MAC
// addresses. All of them are ours, whoever added them: those that are not desired are deleted.
type neighStore struct {
	conn  *rtnetlink.Conn
	scope *scopePointer
}

func (neighStore) Name() string { return "neighbours" }

func (s neighStore) List(context.Context) (map[neighKey]dataplane.MAC, error) {
	out := map[neighKey]dataplane.MAC{}
	scope := s.scope.Load()
	if len(scope.tunnels) == 0 {
		return out, nil
	}
	// Of all families and devices. Dump calls the first function before each try.
	all := make(rtnetlink.Message, lenNdmsg)
	err := s.conn.Dump(unix.RTM_GETNEIGH, all, func() { clear(out) }, func(body []byte) error {
		n, ok, err := parseNeigh(body)
		if ok && n.permanent && n.ip.IsValid() && scope.tunnels[n.index] {
			out[neighKey{n.index, n.ip}] = n.mac
		}
		return err
	})
	return out, err
}

func (s neighStore) Set(_ context.Context, entries []neighEntry) []error {
	return explainFull(batch(s.conn, entries, func(m rtnetlink.Message, e neighEntry) rtnetlink.Message {
		return writeNeigh(m, unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, rtnetlink.Family(e.Key.IP), e.Key.Index, e.Key.IP, e.Value)
	}))
}

// explainFull says what to do if the kernel has no room for a neighbour. Since Linux 5.0, permanent ones do not count.
func explainFull(errs []error) []error {
	for i, err := range errs {
		if errors.Is(err, unix.ENOBUFS) && !reconcile.IsUnknown(err) {
			errs[i] = fmt.Errorf("%w: the host's neighbour table may be full: raise "+
				"net.ipv4.neigh.default.gc_thresh2 and gc_thresh3 (or net.ipv6…) above the number of peers", err)
		}
	}
	return errs
}

func (s neighStore) Delete(_ context.Context, entries []neighEntry) []error {
	return ignoreMissing(batch(s.conn, entries, func(m rtnetlink.Message, e neighEntry) rtnetlink.Message {
		return writeNeigh(m, unix.RTM_DELNEIGH, 0, rtnetlink.Family(e.Key.IP), e.Key.Index, e.Key.IP, e.Value)
	}))
}

// fdbStore holds the permanent FDB entries of our tunnel devices, by MAC address, with the
// underlay address of the tunnel's end. As with neighbours, all of them are ours.
type fdbStore struct {
	conn  *rtnetlink.Conn
	scope *scopePointer
}

func (fdbStore) Name() string { return "fdb" }

// List makes a dump for each of our devices, since one of all has the entries of all bridges,
// too. Kernels before 4.20 send them anyway, hence the comparison of the index.
func (s fdbStore) List(context.Context) (map[fdbKey]netip.Addr, error) {
	out := map[fdbKey]netip.Addr{}
	for index := range s.scope.Load().tunnels {
		request := make(rtnetlink.Message, lenNdmsg)
		request[0] = unix.AF_BRIDGE // ndm_family
		request = request.Uint32(unix.NDA_IFINDEX, uint32(index))
		reset := func() { maps.DeleteFunc(out, func(key fdbKey, _ netip.Addr) bool { return key.Index == index }) }
		err := s.conn.Dump(unix.RTM_GETNEIGH, request, reset, func(body []byte) error {
			n, ok, err := parseNeigh(body)
			if ok && n.permanent && n.ip.IsValid() && n.index == index {
				out[fdbKey{n.index, n.mac}] = n.ip
			}
			return err
		})
		if errors.Is(err, unix.ENODEV) {
			continue // the device was just deleted; its notification leads to another list
		}
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (s fdbStore) Set(_ context.Context, entries []fdbEntry) []error {
	return batch(s.conn, entries, func(m rtnetlink.Message, e fdbEntry) rtnetlink.Message {
		return writeNeigh(m, unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, unix.AF_BRIDGE, e.Key.Index, e.Value, e.Key.MAC)
	})
}

func (s fdbStore) Delete(_ context.Context, entries []fdbEntry) []error {
	return ignoreMissing(batch(s.conn, entries, func(m rtnetlink.Message, e fdbEntry) rtnetlink.Message {
		return writeNeigh(m, unix.RTM_DELNEIGH, 0, unix.AF_BRIDGE, e.Key.Index, e.Value, e.Key.MAC)
	}))
}

// batch is Conn.Batch with one message for each entry. Element i of the result is the error of
// entry i; nil means that all succeeded.
func batch[E any](c *rtnetlink.Conn, entries []E, write func(rtnetlink.Message, E) rtnetlink.Message) []error {
	return c.Batch(len(entries), func(m rtnetlink.Message, i int) rtnetlink.Message { return write(m, entries[i]) })
}

// ignoreMissing removes the errors of deleting what does not exist.
func ignoreMissing(errs []error) []error {
	for i, err := range errs {
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENODEV) {
			errs[i] = nil
		}
	}
	return errs
}
