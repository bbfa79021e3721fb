package daemon

import (
	"maps"
	"slices"

	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile/runner"
)

// identity is what resolveDuplicates knows about this node's MAC addresses and key.
type identity struct {
	readdressed map[string]bool     // devices that must have the MAC address that the backend derives
	duplicate   string              // the lease that has our MAC address and precedence, if we cannot change ours; "": none
	formerKey   dataplane.PublicKey // the WireGuard key that another node has, too, and that this node replaces; zero: none
}

// devices returns the desired devices: those that the backend needs, with the
// node's networks, and with Readdress set by resolveDuplicates and acquire.
func (n *node) devices() []dataplane.Device {
	devices, networks := n.backend.Devices(n.lease), slices.Concat(n.networks(), n.former.networks)
	for i := range devices {
		devices[i].Readdress, devices[i].Networks = n.identity.readdressed[devices[i].Name], networks
	}
	return devices
}

// resolveDuplicates changes the MAC address of a device if another lease has
// the same address, with precedence (see plan.Outranked): otherwise all other
// nodes would reject our lease. The next pass changes the device and publishes
// the new address, which is derived from our subnet. Nobody has precedence over
// us for that address, so a device is changed once at most. Likewise, the
// dataplane replaces a WireGuard key, once. If another lease has the new key,
// too, its node has copied it from ours on purpose.
//
// For example, two virtual machines are clones, and flannel.1 has the address m
// on both. The node with the younger lease is outranked and takes its derived
// address; the other node keeps m.
func (d *Daemon) resolveDuplicates(n *node, in *inbox) {
	outranked := n.plan.Outranked()
	if len(outranked) == 0 {
		n.identity.duplicate = ""
		return
	}
	devices := map[string]dataplane.Device{}
	for _, dev := range n.backend.Devices(n.lease) {
		devices[dev.Name] = dev
	}
	for _, name := range slices.Sorted(maps.Keys(outranked)) {
		peer, link := outranked[name], n.last.links[name]
		switch devices[name].Kind.(type) {
		case dataplane.Overlay, dataplane.L2Bridge: // HNS chooses the address
			if n.identity.duplicate != peer { // logged once for each peer
				n.identity.duplicate = peer
				d.Log.Warn("duplicate MAC address: other nodes reject this node's lease; "+
					"run flanneld cleanup and start flanneld again, so that HNS chooses another address",
					"cause", causeDuplicateMAC, "network", name, "peer", peer, "mac", link.MAC)
			}
		case dataplane.WireGuard:
			d.resolveDuplicateKey(n, in, name, peer)
		default:
			if !n.identity.readdressed[name] {
				d.Log.Warn("duplicate MAC address: changing the address of this node's device",
					"cause", causeDuplicateMAC, "device", name, "peer", peer, "from", link.MAC, "to", devices[name].MAC)
				n.identity.readdressed[name] = true
				runner.Notify(in.changed)
			}
		}
	}
}

// resolveDuplicateKey is resolveDuplicates for a WireGuard device. While the
// key cannot be replaced (its file cannot be written), the node still has its
// former key, and the other node's is not a copy of the new one.
func (d *Daemon) resolveDuplicateKey(n *node, in *inbox, device, peer string) {
	key := n.last.links[device].Key
	switch {
	case key == dataplane.PublicKey{}: // the device is missing; a later pass knows
	case !n.identity.readdressed[device]:
		d.Log.Warn("duplicate WireGuard key: replacing this node's private key", "cause", causeDuplicateKey, "device", device, "peer", peer, "publicKey", key)
		n.identity.readdressed[device], n.identity.formerKey = true, key
		runner.Notify(in.changed)
	case key != n.identity.formerKey && n.identity.duplicate != peer:
		n.identity.duplicate = peer
		d.Log.Warn("duplicate WireGuard key: other nodes reject this node's lease; the other node publishes a copy of its key, delete that node's lease",
			"cause", causeDuplicateKey, "device", device, "peer", peer, "publicKey", key)
	}
}
