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
}

// kindOf returns the kind of a device.
func kindOf(dev dataplane.Device) (kind, error) {
	switch dev.Kind.(type) {
	case dataplane.Existing:
		return existing{}, nil
	case dataplane.VXLAN:
		return vxlan{}, nil
	}
	return nil, fmt.Errorf("device kind %s is not supported on Linux", dataplane.KindName(dev.Kind))
}

// isTunnel reports whether flanneld makes the device.
func isTunnel(dev dataplane.Device) bool {
	_, isUnderlay := dev.Kind.(dataplane.Existing)
	return !isUnderlay
}

// kindOfPath returns the kind of the device that a path leads through.
func kindOfPath(p *dataplane.Path) (kind, error) {
	switch p.Encap.(type) {
	case dataplane.Direct:
		return existing{}, nil
	case dataplane.VTEP:
		return vxlan{}, nil
	}
	return nil, fmt.Errorf("path to %s: encapsulation %T is not supported on Linux", p.Dst, p.Encap)
}

// linkTypes are the kernel's types of the devices that flannel makes, with all of
// its backends, by the names that it gives them.
var linkTypes = []struct {
	name *regexp.Regexp
	link string
}{
	{regexp.MustCompile(`^flannel(-v6)?\.\d+$`), "vxlan"},
	{regexp.MustCompile(`^flannel\.ipip$`), "ipip"},
	{regexp.MustCompile(`^flannel-wg(-v6)?$`), "wireguard"},
	{regexp.MustCompile(`^flannel\d+$`), "tuntap"},
}

// linkTypeOf returns the type of flannel's devices with such a name; "" if it gives
// none that name.
func linkTypeOf(name string) string {
	for _, row := range linkTypes {
		if row.name.MatchString(name) {
			return row.link
		}
	}
	return ""
}

// isOurType reports whether flannel gives devices of this type such a name. The type
// of TUN devices is "tuntap" or, in other libraries, "tun".
func isOurType(l netlink.Link) bool {
	ours := linkTypeOf(l.Attrs().Name)
	return ours != "" && (l.Type() == ours || l.Type() == "tun")
}
