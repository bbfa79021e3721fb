package daemon

import (
	"maps"
	"slices"

	"flannel/pkg/dataplane"
	"flannel/pkg/mac"
)

// devices are those that the backend needs, with what the daemon decided about their MAC addresses.
func (n *node) devices() []dataplane.Device {
	devices := n.backend.Devices(n.lease)
	for i := range devices {
		devices[i].Readdress = n.readdressed[devices[i].Name]
	}
	return devices
}

// resolveDuplicates gives a device another MAC address when another lease has the one that it has, and has it before
// us: every other node rejects our lease then. Of two nodes only one finds itself outranked, and nobody is before us
// with the address that is derived from our own subnet, so that this happens once at most. The next pass changes the
// device and publishes the new address.
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
		peer, has := outranked[device], n.links[device].MAC
		switch {
		case derived[device] == (mac.Addr{}): // HNS chooses it
			if n.duplicate != peer {
				n.duplicate = peer
				d.Log.Warn("another node has the MAC address of this node's network and precedence, so other nodes reject this one: "+
					"run flanneld cleanup and start flanneld again, and HNS chooses an address for a new network",
					"cause", causeDuplicateMAC, "network", device, "peer", peer, "mac", has)
			}
		case !n.readdressed[device]:
			d.Log.Warn("another node has the MAC address of this node's device and precedence, changing ours",
				"cause", causeDuplicateMAC, "device", device, "peer", peer, "from", has, "to", derived[device])
			n.readdressed[device] = true
			poke(in.changed)
		}
	}
}
