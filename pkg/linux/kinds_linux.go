package linux

import (
	"fmt"
	"reflect"
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

// kinds lists the devices of the host, and those that flannel makes with any of its
// backends: which devices and paths are of a kind, and what names and which link
// type flannel gives the devices. Devices of rows without a kind are only deleted.
var kinds = []struct {
	kind
	device dataplane.Kind
	encap  dataplane.Encap
	name   *regexp.Regexp
	link   string
}{
	{existing{}, dataplane.Existing{}, dataplane.Direct{}, nil, ""},
	{vxlan{}, dataplane.VXLAN{}, dataplane.VTEP{}, regexp.MustCompile(`^flannel(-v6)?\.\d+$`), "vxlan"},
	{ipip{}, dataplane.IPIP{}, dataplane.IPInIP{}, regexp.MustCompile(`^flannel\.ipip$`), "ipip"},
	{wireguard{}, dataplane.WireGuard{}, dataplane.WireGuardPeer{}, regexp.MustCompile(`^flannel-wg(-v6)?$`), "wireguard"},
	{ipsec{}, dataplane.IPsec{}, dataplane.ESP{}, nil, ""},
	{tun{}, dataplane.TUN{}, dataplane.Datagram{}, regexp.MustCompile(`^flannel\d+$`), "tuntap"},
}

// kindOf returns the kind of a device.
func kindOf(dev dataplane.Device) (kind, error) {
	for _, row := range kinds {
		if row.kind != nil && reflect.TypeOf(row.device) == reflect.TypeOf(dev.Kind) {
			return row.kind, nil
		}
	}
	return nil, fmt.Errorf("device kind %s is not supported on Linux", dataplane.KindName(dev.Kind))
}

// isTunnel reports whether flanneld makes the device.
func isTunnel(dev dataplane.Device) bool {
	switch dev.Kind.(type) {
	case dataplane.Existing, dataplane.IPsec:
		return false
	}
	return true
}

// kindOfPath returns the kind of the device that a path leads through.
func kindOfPath(p *dataplane.Path) (kind, error) {
	for _, row := range kinds {
		if row.kind != nil && reflect.TypeOf(row.encap) == reflect.TypeOf(p.Encap) {
			return row.kind, nil
		}
	}
	return nil, fmt.Errorf("path to %s: encapsulation %T is not supported on Linux", p.Dst, p.Encap)
}

// linkTypeOf returns the type of flannel's devices with such a name; "" if it gives
// none that name.
func linkTypeOf(name string) string {
	for _, row := range kinds {
		if row.name != nil && row.name.MatchString(name) {
			return row.link
		}
	}
	return ""
}

// isTAP reports whether a device is of type tuntap and takes Ethernet frames, such as
// those of virtual machines. flannel makes none.
func isTAP(l netlink.Link) bool {
	t, ok := l.(*netlink.Tuntap)
	return ok && t.Mode == netlink.TUNTAP_MODE_TAP
}

// isOurType reports whether flannel gives devices of this type such a name. The type
// of TUN devices is "tuntap" or, in other libraries, "tun". wireguard-go makes one in
// the place of a WireGuard device.
func isOurType(l netlink.Link) bool {
	ours := linkTypeOf(l.Attrs().Name)
	return !isTAP(l) && ours != "" && (l.Type() == ours || l.Type() == "tun" || ours == "wireguard" && l.Type() == "tuntap")
}
