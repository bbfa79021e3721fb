package linux

import (
	"context"
	"net/netip"

	"github.com/vishvananda/netlink"

	"flannel/pkg/dataplane"
	"flannel/pkg/dataplane/driver"
	"flannel/pkg/linux/guard"
	"flannel/pkg/status/report"
)

// The methods that the driver calls of its parts, and when:
//
//	New                the tables of each kind
//	Ensure             ensure, of the device's kind
//	Found              found, of the device's kind
//	Apply              begin, networkRoutes, fill and want; then describeOuter and
//	                   parameters; start, after the entries of tables were added;
//	                   prune, after those that are not wanted were deleted; diverted
//	Cleanup, Handback  leave
//	QueueResync        relist
//	Traffic, Forwarded the method of the same name
//	Close              close
//	notifications      observeAddr, portLeft
//
// Those for Traffic and Forwarded may be called by any goroutine. The watcher calls
// observeAddr, portLeft and relist, the loop calls relist and all others.

// part is a kind of device, the guard or the bridges. Each has a file. A part that has no
// use for a method embeds none.
type part interface {
	// relist makes the next pass read again what notifications may not have told.
	relist()
	// observeAddr handles an address that was added to a device that Ensure was not
	// given, or deleted, by the attributes of its notification. It reports whether a pass
	// is due.
	observeAddr(attrs []byte) (due bool)
	// portLeft handles that a bridge has lost a port. It reports whether a pass is due.
	portLeft() (due bool)
	// prune removes what is no longer desired, beside the entries of tables.
	prune(ctx context.Context) error
	// leave adds what a Cleanup or a Handback does. The tables have been listed.
	leave(l *leaving) error
	// close ends what the part has started, and leaves the network as it is.
	close() error
}

// kind drives devices of one kind, and paths through them. It holds what it knows about
// them, and has the tables that only its paths need.
type kind interface {
	part
	// ensure creates or repairs the device. found is the existing device of that
	// name, or nil. The result is the zero Link if the device does not exist, is not
	// ours or, with an error that IsUnknown, could not be read.
	ensure(dev dataplane.Device, found netlink.Link) (dataplane.Link, error)
	// fill translates a path through the link to entries of tables. The entry whose
	// error is the most useful one for an operator is first.
	fill(f *driver.Filling, p *dataplane.Path, link dataplane.Link)
	// found is the inverse of fill: it returns the paths through the link, into the
	// networks of s, whose entries exist.
	found(dev dataplane.Device, link dataplane.Link, s dataplane.State) []*dataplane.Path
	// networkRoutes adds the routes that belong to no peer. link is zero if the device
	// does not exist.
	networkRoutes(want map[routeKey]hop, dev dataplane.Device, link dataplane.Link, s dataplane.State)
	// describeOuter tells the guard what packets of the tunnel look like from outside.
	describeOuter(c *guard.Config, dev dataplane.Device)
	// parameters returns what the kernel must be set to, so that it forwards between pods
	// and a device of others.
	parameters(device string) []sysctl
	// tables returns the kind's own tables: those to whose entries routes lead, which are
	// added before the routes, and those that are added after them.
	tables() (before, after driver.Tables)
	// begin reports whether the tables must want nothing at first, because all entries of
	// the kind depend on what has changed.
	begin() (reset bool)
	// want makes the kind's tables want what belongs to no path.
	want(links dataplane.Links, s dataplane.State)
	// start starts what must not run before the peers are known.
	start()
	// diverted returns the paths whose packets a route of others leads elsewhere.
	diverted(s dataplane.State) []dataplane.Refused
	// traffic is what Dataplane.Traffic returns; nil: nothing.
	traffic() map[netip.Prefix]report.Tunnel
	// forwarded is what Dataplane.Forwarded returns.
	forwarded() *report.Forwarded
}

// host is what kinds are made with.
type host struct {
	opts driver.Options
	*devices
	*rows
	notify func() // a pass is due
}

// none has no device, entry or state, and nothing to do.
type none struct{}

func (none) relist() {}

func (none) observeAddr([]byte) (due bool) { return false }

func (none) portLeft() (due bool) { return false }

func (none) prune(context.Context) error { return nil }

func (none) leave(*leaving) error { return nil }

func (none) close() error { return nil }

func (none) found(dataplane.Device, dataplane.Link, dataplane.State) []*dataplane.Path { return nil }

func (none) networkRoutes(map[routeKey]hop, dataplane.Device, dataplane.Link, dataplane.State) {}

func (none) describeOuter(*guard.Config, dataplane.Device) {}

func (none) parameters(string) []sysctl { return nil }

func (none) tables() (before, after driver.Tables) { return nil, nil }

func (none) begin() (reset bool) { return false }

func (none) want(dataplane.Links, dataplane.State) {}

func (none) start() {}

func (none) diverted(dataplane.State) []dataplane.Refused { return nil }

func (none) traffic() map[netip.Prefix]report.Tunnel { return nil }

func (none) forwarded() *report.Forwarded { return nil }
