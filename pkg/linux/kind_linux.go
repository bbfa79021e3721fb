package linux

import (
	"context"
	"net/netip"

	"github.com/vishvananda/netlink"

	"flannel/pkg/dataplane"
	"flannel/pkg/linux/guard"
)

// The methods that the driver calls of a kind, and when:
//
//	New                tables
//	Ensure             ensure, of the device's kind
//	Found              found, of the device's kind
//	Found, Apply       relistNetworks, if networks or subnets have changed
//	Apply              begin, networkRoutes, fill and want; then configureGuard and, if sysctls
//	                   may have changed, parameters; start, after the entries of tables were
//	                   added; prune, after those that are not wanted were deleted; diverted
//	Cleanup, Handback  leave
//	Traffic, Forwarded the method of the same name
//	Close              close
//
// Those for Traffic and Forwarded may be called by any goroutine, all others by the loop (or by a
// Cleanup or Handback, which have no loop).

// kind drives devices of one kind, and paths through them. It holds what it knows about
// them, and has the tables that only its paths need. A driver has one of each, also those that
// the configuration does not use. Each kind has a file. Its type embeds the type none, which has
// all methods but ensure and fill and does nothing, and declares those that do something.
type kind interface {
	// ensure creates or repairs the device. found is the existing device of that
	// name, or nil. The result is the zero Link if the device does not exist, is not
	// ours or, with an error that IsUnknown, could not be read: then the last Link counts.
	// A Link with an error is that of a device that could not be repaired; it is used.
	ensure(dev dataplane.Device, found netlink.Link) (dataplane.Link, error)
	// fill translates a path through the link to entries of tables. The entry whose
	// error is the most useful one for an operator is first.
	fill(f *dataplane.Filling, p *dataplane.Path, link dataplane.Link)
	// found is the inverse of fill: it returns the paths through the device, into the
	// networks of s, whose entries exist. routes are those of Found through the device.
	found(dev dataplane.Device, routes []routeEntry, s dataplane.State) []*dataplane.Path
	// networkRoutes adds the routes that belong to no peer to want. link is zero if the
	// device does not exist.
	networkRoutes(want map[routeKey]hop, dev dataplane.Device, link dataplane.Link, s dataplane.State)
	// configureGuard tells the guard what it needs to know beside the traits of the kind.
	configureGuard(c *guard.Config, dev dataplane.Device)
	// parameters returns what the kernel must be set to, so that it forwards between pods
	// and a device of others. The driver reports parameters with other values, and changes none.
	parameters(device string) []sysctl
	// tables returns the kind's own tables: those to whose entries routes lead, which are
	// added before the routes, and those that are added after them.
	tables() (before, after dataplane.Tables)
	// begin makes the kind fill entries for the devices of the last Ensure from now on. It
	// reports whether the tables must want nothing at first, because all entries of the kind
	// depend on what has changed.
	begin() (reset bool)
	// relistNetworks makes those of the kind's tables be listed again whose List depends on
	// the networks or subnets, which have changed.
	relistNetworks()
	// want makes the kind's tables want what belongs to no path.
	want(links dataplane.Links, s dataplane.State)
	// start starts what must not run before the peers are known. Each pass calls it.
	start()
	// prune removes what is no longer desired, beside the entries of tables.
	prune(ctx context.Context) error
	// leave adds what a Cleanup or a Handback does to l, and changes nothing itself. It lists
	// the kind's tables if it needs them. After an error, nothing is done.
	leave(ctx context.Context, l *leaving) error
	// diverted returns the paths whose packets a route of others leads elsewhere, with that as
	// their error.
	diverted(s dataplane.State) []dataplane.Refused
	// traffic is what Dataplane.Traffic returns; nil: nothing.
	traffic() map[netip.Prefix]dataplane.TunnelReport
	// forwarded is what Dataplane.Forwarded returns.
	forwarded() *dataplane.Forwarded
	// close ends what the kind has started, and leaves the network as it is.
	close() error
}

// host is what kinds are made with, and embed: the driver's own parts.
type host struct {
	opts     dataplane.Options
	*devices        // finds and repairs devices
	*rows           // the tables that several kinds share
	notify   func() // causes a pass; any goroutine may call it
}

// none has the methods of a kind that has nothing to do for them.
type none struct{}

func (none) prune(context.Context) error { return nil }

func (none) leave(context.Context, *leaving) error { return nil }

func (none) close() error { return nil }

func (none) found(dataplane.Device, []routeEntry, dataplane.State) []*dataplane.Path { return nil }

func (none) networkRoutes(map[routeKey]hop, dataplane.Device, dataplane.Link, dataplane.State) {}

func (none) configureGuard(*guard.Config, dataplane.Device) {}

func (none) parameters(string) []sysctl { return nil }

func (none) tables() (before, after dataplane.Tables) { return nil, nil }

func (none) begin() (reset bool) { return false }

func (none) relistNetworks() {}

func (none) want(dataplane.Links, dataplane.State) {}

func (none) start() {}

func (none) diverted(dataplane.State) []dataplane.Refused { return nil }

func (none) traffic() map[netip.Prefix]dataplane.TunnelReport { return nil }

func (none) forwarded() *dataplane.Forwarded { return nil }
