package linux

import (
	"fmt"
	"regexp"

	"github.com/vishvananda/netlink"

	"flannel/pkg/dataplane"
	"flannel/pkg/dataplane/driver"
)

// kind drives the devices of one kind, and the paths through them. Each has a file of its own.
type kind interface {
	// drives and carries report whether devices and paths are of this kind.
	drives(dataplane.Kind) bool
	carries(dataplane.Encap) bool
	// ensure makes the device what it shall be; found is that of its name, nil if there is none. It returns the zero
	// Link for a device that does not exist, is not ours or, with an error that reconcile.IsUnknown, could not be looked
	// at.
	ensure(d *Driver, dev dataplane.Device, found netlink.Link) (dataplane.Link, error)
	// fill puts the entries that a path through the link comes to into the tables that the kind fills; that comes first
	// of which a refusal says most.
	fill(d *Driver, f *driver.Filling, p *dataplane.Path, link dataplane.Link)
	// raise is the inverse of fill: the path that a route belongs to. It is nil if the other entries of the path are not
	// there, or the route has another form than fill gives it.
	raise(d *Driver, key routeKey, h hop, device string) *dataplane.Path
	// made reports whether we make such devices, rather than find them.
	made() bool
}

// kinds are all kinds of device of all backends of flannel: the names and the types of those that a flannel makes (type
// "tun": libraries differ), and what drives them here. Without the latter we only clean up.
var kinds = []struct {
	kind
	name *regexp.Regexp
	link string
}{
	{kind: existing{}},
	{vxlan{}, regexp.MustCompile(`^flannel(-v6)?\.\d+$`), "vxlan"},
	{nil, regexp.MustCompile(`^flannel\.ipip$`), "ipip"},
	{nil, regexp.MustCompile(`^flannel-wg(-v6)?$`), "wireguard"},
	{nil, regexp.MustCompile(`^flannel\d+$`), "tuntap"},
}

// oursByName reports whether a device's name is one that a flannel gives.
func oursByName(name string) bool {
	for _, row := range kinds {
		if row.name != nil && row.name.MatchString(name) {
			return true
		}
	}
	return false
}

// isOurs reports whether a device is one that a flannel makes: of a type that has its name.
func isOurs(l netlink.Link) bool {
	for _, row := range kinds {
		if row.name != nil && row.name.MatchString(l.Attrs().Name) && (l.Type() == row.link || l.Type() == "tun") {
			return true
		}
	}
	return false
}

// driving finds what drives a device.
func driving(dev dataplane.Device) (kind, error) {
	for _, row := range kinds {
		if row.kind != nil && row.drives(dev.Kind) {
			return row.kind, nil
		}
	}
	return nil, fmt.Errorf("device kind %s is not supported on Linux", dataplane.KindName(dev.Kind))
}

// carrying finds what puts a path into the tables.
func carrying(p *dataplane.Path) (kind, error) {
	for _, row := range kinds {
		if row.kind != nil && row.carries(p.Encap) {
			return row.kind, nil
		}
	}
	return nil, fmt.Errorf("path to %s: encapsulation %T is not supported on Linux", p.Dst, p.Encap)
}

// isMade reports whether a device is one that we make.
func isMade(dev dataplane.Device) bool {
	k, err := driving(dev)
	return err == nil && k.made()
}
