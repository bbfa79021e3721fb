package daemon

import (
	"maps"
	"slices"

	"flannel/pkg/dataplane"
	"flannel/pkg/mac"
)

// devices returns the desired devices: those that the backend needs, with
// Readdress set by resolveDuplicates and acquire.
func (n *node) devices() []dataplane.Device {
	devices := n.backend.Devices(n.lease)
	for i := range devices {
		devices[i].Readdress = n.readdressed[devices[i].Name]
	}
	return devices
}

// resolveDuplicates changes the MAC address of a device if another lease has
// the same address, with precedence (see plan.Outranked): otherwise all other
// nodes would reject our lease. The next pass changes the device and publishes
// the new address, which is derived from our subnet. Nobody has precedence over
// us for that address, so a device is changed once at most.
//
// For example, two virtual machines are clones, and flannel.1 has the address m
// on both. The node with the younger lease is outranked and takes its derived
// address; the other node keeps m.
func (d *Daemon) resolveDuplicates(n *node, in *inbox) {
	outranked := n.plan.Outranked()
	if len(outranked) == 0 {
		n.duplicate = ""
		return
	}
	derived := map[string]mac.Addr{}
	for _, dev := range n.backend.Devices(n.lease) {
		derived[dev.Name] = dev.MAC
	}
	for _, device := range slices.Sorted(maps.Keys(outranked)) {
		peer, current := outranked[device], n.links[device].MAC
		switch {
		case derived[device] == (mac.Addr{}): // HNS chooses the address
			if n.duplicate != peer { // logged once for each peer
				n.duplicate = peer
				d.Log.Warn("duplicate MAC address: other nodes reject this node's lease; "+
					"run flanneld cleanup and start flanneld again, so that HNS chooses another address",
					"cause", causeDuplicateMAC, "network", device, "peer", peer, "mac", current)
			}
		case !n.readdressed[device]:
			d.Log.Warn("duplicate MAC address: changing the address of this node's device",
				"cause", causeDuplicateMAC, "device", device, "peer", peer, "from", current, "to", derived[device])
			n.readdressed[device] = true
			notify(in.changed)
		}
	}
}
