package linux

import (
	"fmt"
	"regexp"

	"github.com/vishvananda/netlink"

	"flannel/pkg/dataplane"
	"flannel/pkg/dataplane/driver"
)

// kind drives devices of one kind, and paths through them. Each kind has a file.
type kind interface {
	// drives and carries report whether devices and paths are of this kind.
	drives(dataplane.Kind) bool
	carries(dataplane.Encap) bool
	// ensure creates or repairs the device. found is the existing device of that
	// name, or nil. The result is the zero Link if the device does not exist, is not
	// ours or, with an error that IsUnknown, could not be read.
	ensure(d *Driver, dev dataplane.Device, found netlink.Link) (dataplane.Link, error)
	// fill translates a path through the link to entries of tables. The entry whose
	// error is the most useful one for an operator is first.
	fill(d *Driver, f *driver.Filling, p *dataplane.Path, link dataplane.Link)
	// pathOf is the inverse of fill: it returns the path of a route, or nil if other
	// entries of the path do not exist, or fill would make another route.
	pathOf(d *Driver, key routeKey, h hop, device string) *dataplane.Path
	// made reports whether flanneld makes such devices.
	made() bool
}

// kinds lists the device kinds of all backends of flannel, with the names and the
// link types of those that it makes (for TUN devices, "tun" as well: libraries
// differ). Devices of rows without a kind are only deleted.
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

// hasOurName reports whether flannel gives devices such a name.
func hasOurName(name string) bool {
	for _, row := range kinds {
		if row.name != nil && row.name.MatchString(name) {
			return true
		}
	}
	return false
}

// isOurs reports whether flannel gives devices of this type such a name.
func isOurs(l netlink.Link) bool {
	for _, row := range kinds {
		if row.name != nil && row.name.MatchString(l.Attrs().Name) && (l.Type() == row.link || l.Type() == "tun") {
			return true
		}
	}
	return false
}

// driving returns the kind of a device.
func driving(dev dataplane.Device) (kind, error) {
	for _, row := range kinds {
		if row.kind != nil && row.drives(dev.Kind) {
			return row.kind, nil
		}
	}
	return nil, fmt.Errorf("device kind %s is not supported on Linux", dataplane.KindName(dev.Kind))
}

// carrying returns the kind of a path.
func carrying(p *dataplane.Path) (kind, error) {
	for _, row := range kinds {
		if row.kind != nil && row.carries(p.Encap) {
			return row.kind, nil
		}
	}
	return nil, fmt.Errorf("path to %s: encapsulation %T is not supported on Linux", p.Dst, p.Encap)
}

// isMade reports whether flanneld makes devices of this kind.
func isMade(dev dataplane.Device) bool {
	k, err := driving(dev)
	return err == nil && k.made()
}
