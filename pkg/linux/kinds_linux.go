package linux

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/vishvananda/netlink"

	"flannel/pkg/dataplane"
)

// kindRow is a row of kindRows. For host and kind, which drives the devices, see
// kind_linux.go.
type kindRow struct {
	make    func(host) kind // for a new driver
	device  dataplane.Kind  // of this type are the devices of the kind; the value is not used
	encap   dataplane.Encap // of this type are the paths through them; likewise
	watched string          // IFLA_INFO_KIND of devices whose IFLA_INFO_DATA is watched; "": none, see tunnelData
	idle    bool            // without a flanneld, the device forwards nothing
}

// has reports whether flannel gives devices of this type such a name.
func (r kindRow) has(l netlink.Link) bool {
	return r.gives(l.Attrs().Name) && slices.Contains(dataplane.TraitsOf(r.device).Links, l.Type())
}

// gives reports whether flannel gives devices of this row such a name. Rows whose devices are
// the host's (existing, IPsec) give none.
func (r kindRow) gives(name string) bool {
	names := dataplane.TraitsOf(r.device).Name
	return names != nil && names.MatchString(name)
}

// kindRows lists the devices of the host, and those that flannel makes with any of its
// backends: which devices and paths are of a kind. Their names and types of link are in the
// traits of the kind. Only VXLAN and IPIP are watched: WireGuard has no IFLA_INFO_DATA, and
// nothing in that of a TUN device is compared.
var kindRows = []kindRow{
	{make: newExisting, device: dataplane.Existing{}, encap: dataplane.Direct{}},
	{make: newVXLAN, device: dataplane.VXLAN{}, encap: dataplane.VTEP{}, watched: "vxlan"},
	{make: newIPIP, device: dataplane.IPIP{}, encap: dataplane.IPInIP{}, watched: "ipip"},
	{make: newWireGuard, device: dataplane.WireGuard{}, encap: dataplane.WireGuardPeer{}},
	{make: newIPsec, device: dataplane.IPsec{}, encap: dataplane.ESP{}},
	{make: newTUN, device: dataplane.TUN{}, encap: dataplane.Datagram{}, idle: true},
}

// newKinds makes the kinds, one for each row.
func newKinds(h host) []kind {
	made := make([]kind, len(kindRows))
	for i, row := range kindRows {
		made[i] = row.make(h)
	}
	return made
}

// rowOf returns the index of a device's row; -1: none, as of the kinds of Windows.
func rowOf(dev dataplane.Device) int {
	for i, row := range kindRows {
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

// isTunnel reports whether flanneld makes the device: its kind has types of link.
func isTunnel(dev dataplane.Device) bool {
	return rowOf(dev) >= 0 && dataplane.TraitsOf(dev.Kind).Links != nil
}

// kindOfPath returns the kind of the device that a path leads through.
func (d *Driver) kindOfPath(p *dataplane.Path) (kind, error) {
	for i, row := range kindRows {
		if reflect.TypeOf(row.encap) == reflect.TypeOf(p.Encap) {
			return d.kinds[i], nil
		}
	}
	return nil, fmt.Errorf("path to %s: encapsulation %T is not supported on Linux", p.Dst, p.Encap)
}

// isOurName reports whether flannel gives devices such a name. The watcher calls it: a new
// device is not in the scope yet.
func isOurName(name string) bool {
	return slices.ContainsFunc(kindRows, func(row kindRow) bool { return row.gives(name) })
}

// isOurType reports whether flannel gives devices of this type such a name. ownsDevice
// begins with it: another device of that name is somebody else's.
func isOurType(l netlink.Link) bool {
	return !isTAP(l) && slices.ContainsFunc(kindRows, func(row kindRow) bool { return row.has(l) })
}

// isIdle reports whether a device of ours forwards nothing without a flanneld, so that
// Handback deletes it. It does not look for a TAP: the caller has asked isOurType.
func isIdle(l netlink.Link) bool {
	return slices.ContainsFunc(kindRows, func(row kindRow) bool { return row.idle && row.has(l) })
}

// isTAP reports whether a device is of type tuntap and takes Ethernet frames, such as
// those of virtual machines. flannel makes none.
func isTAP(l netlink.Link) bool {
	t, ok := l.(*netlink.Tuntap)
	return ok && t.Mode == netlink.TUNTAP_MODE_TAP
}
