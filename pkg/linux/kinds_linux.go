package linux

import (
	"context"
	"fmt"
	"net/netip"
	"reflect"
	"regexp"
	"slices"

	"github.com/vishvananda/netlink"

	"flannel/pkg/dataplane"
	"flannel/pkg/dataplane/driver"
	"flannel/pkg/linux/guard"
	"flannel/pkg/status/report"
)

// part is a kind of device, the guard or the bridges. Each has a file. The driver calls
// the methods of all parts, and knows none of them by name where it has to do nothing
// else for it. A part that has no use for a method embeds none.
type part interface {
	// relist makes the next pass read again what notifications may not have told.
	relist()
	// observeAddr handles the attributes of an address, on a device that Ensure was not
	// given, that was added or deleted. It reports whether a pass is due. The watcher
	// calls it.
	observeAddr(attrs []byte) (due bool)
	// portLeft likewise handles that a bridge has lost a port.
	portLeft() (due bool)
	// prune removes what is no longer desired, beside the entries of tables.
	prune(ctx context.Context) error
	// leave adds what a Cleanup or a Handback does, after the tables were listed.
	leave(l *leaving) error
	// close ends what the part has started, but leaves the network as it is.
	close() error
}

// kind drives devices of one kind, and paths through them.
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
	// networks, whose entries exist.
	found(dev dataplane.Device, link dataplane.Link, s dataplane.State) []*dataplane.Path
	// networkRoutes adds the routes that belong to no peer. link is zero if the device
	// does not exist.
	networkRoutes(want map[routeKey]hop, dev dataplane.Device, link dataplane.Link, s dataplane.State)
	// describeOuter tells the guard what a packet of the tunnel looks like from outside.
	describeOuter(c *guard.Config, dev dataplane.Device)
	// parameters returns those of the host without which the kernel does not forward
	// what arrives on a device of others, or leaves through it.
	parameters(device string) []sysctl
	// tables returns the kind's own tables: those whose entries exist before the
	// routes, and the others.
	tables() (before, after driver.Tables)
	// begin is called first in each pass. It reports whether the tables must want
	// nothing, because all entries of the kind depend on what has changed.
	begin() (reset bool)
	// want makes the tables want what belongs to no path.
	want(links dataplane.Links, s dataplane.State)
	// start is called in each pass when all desired entries have been added, or refused.
	start()
	// diverted returns the paths whose packets a route of others leads elsewhere.
	diverted(s dataplane.State) []dataplane.Refused
	// traffic is what Dataplane.Traffic returns. Any goroutine may call it.
	traffic() map[netip.Prefix]report.Tunnel
	// forwarded is what Dataplane.Forwarded returns. Any goroutine may call it.
	forwarded() *report.Forwarded
}

// none answers with nothing.
type none struct{}

func (none) relist() {}

func (none) observeAddr([]byte) (due bool) { return false }

func (none) portLeft() (due bool) { return false }

func (none) found(dataplane.Device, dataplane.Link, dataplane.State) []*dataplane.Path { return nil }

func (none) networkRoutes(map[routeKey]hop, dataplane.Device, dataplane.Link, dataplane.State) {}

func (none) describeOuter(*guard.Config, dataplane.Device) {}

func (none) parameters(string) []sysctl { return nil }

func (none) tables() (before, after driver.Tables) { return nil, nil }

func (none) begin() (reset bool) { return false }

func (none) want(dataplane.Links, dataplane.State) {}

func (none) start() {}

func (none) diverted(dataplane.State) []dataplane.Refused { return nil }

func (none) prune(context.Context) error { return nil }

func (none) leave(*leaving) error { return nil }

func (none) forwarded() *report.Forwarded { return nil }

func (none) traffic() map[netip.Prefix]report.Tunnel { return nil }

func (none) close() error { return nil }

// host is what kinds are made with.
type host struct {
	opts driver.Options
	*devices
	*rows
	notify func() // a pass is due
}

// kindRow is a row of kinds.
type kindRow struct {
	make   func(host) kind
	device dataplane.Kind
	encap  dataplane.Encap
	name   *regexp.Regexp // nil: the devices are not flannel's
	links  []string       // types of link
	idle   bool           // without a flanneld, the device forwards nothing
}

// has reports whether flannel gives devices of this type such a name.
func (r kindRow) has(l netlink.Link) bool {
	return r.name != nil && r.name.MatchString(l.Attrs().Name) && slices.Contains(r.links, l.Type())
}

// kinds lists the devices of the host, and those that flannel makes with any of its
// backends: which devices and paths are of a kind, and what names and which types of
// link flannel gives the devices. wireguard-go makes a TUN device, whose type
// the netlink library calls "tuntap", in the place of a WireGuard device.
var kinds = []kindRow{
	{newExisting, dataplane.Existing{}, dataplane.Direct{}, nil, nil, false},
	{newVXLAN, dataplane.VXLAN{}, dataplane.VTEP{}, regexp.MustCompile(`^flannel(-v6)?\.\d+$`), []string{"vxlan"}, false},
	{newIPIP, dataplane.IPIP{}, dataplane.IPInIP{}, regexp.MustCompile(`^flannel\.ipip$`), []string{"ipip"}, false},
	{newWireGuard, dataplane.WireGuard{}, dataplane.WireGuardPeer{}, regexp.MustCompile(`^flannel-wg(-v6)?$`), []string{"wireguard", "tuntap"}, false},
	{newIPsec, dataplane.IPsec{}, dataplane.ESP{}, nil, nil, false},
	{newTUN, dataplane.TUN{}, dataplane.Datagram{}, regexp.MustCompile(`^flannel\d+$`), []string{"tuntap"}, true},
}

// newKinds makes the kinds, one for each row.
func newKinds(h host) []kind {
	made := make([]kind, len(kinds))
	for i, row := range kinds {
		made[i] = row.make(h)
	}
	return made
}

// rowOf returns the index of a device's row; -1: none.
func rowOf(dev dataplane.Device) int {
	for i, row := range kinds {
		if reflect.TypeOf(row.device) == reflect.TypeOf(dev.Kind) {
			return i
		}
	}
	return -1
}

// kindOf returns the kind of a device.
func (d *Driver) kindOf(dev dataplane.Device) (kind, error) {
	if i := rowOf(dev); i >= 0 {
		return d.kinds[i], nil
	}
	return nil, fmt.Errorf("device kind %s is not supported on Linux", dataplane.KindName(dev.Kind))
}

// isTunnel reports whether flanneld makes the device.
func isTunnel(dev dataplane.Device) bool {
	i := rowOf(dev)
	return i >= 0 && kinds[i].name != nil
}

// kindOfPath returns the kind of the device that a path leads through.
func (d *Driver) kindOfPath(p *dataplane.Path) (kind, error) {
	for i, row := range kinds {
		if reflect.TypeOf(row.encap) == reflect.TypeOf(p.Encap) {
			return d.kinds[i], nil
		}
	}
	return nil, fmt.Errorf("path to %s: encapsulation %T is not supported on Linux", p.Dst, p.Encap)
}

// isOurName reports whether flannel gives devices such a name.
func isOurName(name string) bool {
	return slices.ContainsFunc(kinds, func(row kindRow) bool { return row.name != nil && row.name.MatchString(name) })
}

// isOurType reports whether flannel gives devices of this type such a name.
func isOurType(l netlink.Link) bool {
	return !isTAP(l) && slices.ContainsFunc(kinds, func(row kindRow) bool { return row.has(l) })
}

// isIdle reports whether a device of ours forwards nothing without a flanneld.
func isIdle(l netlink.Link) bool {
	return slices.ContainsFunc(kinds, func(row kindRow) bool { return row.idle && row.has(l) })
}

// isTAP reports whether a device is of type tuntap and takes Ethernet frames, such as
// those of virtual machines. flannel makes none.
func isTAP(l netlink.Link) bool {
	t, ok := l.(*netlink.Tuntap)
	return ok && t.Mode == netlink.TUNTAP_MODE_TAP
}
