package daemon

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	"flannel/pkg/dataplane"
)

// duplicatesPart changes this node's MAC address or key if another node has the same.
func (d *Daemon) duplicatesPart() part {
	return part{name: "duplicates", reconcile: newDuplicates(d.Log).resolve, needsPeers: true}
}

// duplicates is the state of the part, for all devices: the two of WireGuard (IPv4 and
// IPv6) have the same key.
type duplicates struct {
	log       *slog.Logger
	told      map[string]string   // by device whose MAC address or key this node cannot change: the peer that the log has named
	formerKey dataplane.PublicKey // the WireGuard key that another node has, too, and that this node replaces; zero: none
}

func newDuplicates(log *slog.Logger) *duplicates {
	return &duplicates{log: log, told: map[string]string{}}
}

// resolve changes the MAC address of a device if another lease has the same
// address, with precedence: otherwise all other nodes would reject our lease.
// The node from whose subnet the address is derived has precedence, else (as a
// rule) the older lease; see plan.Outranked. The next pass gives the device the
// address that is derived from our subnet, and publishes it. Nobody has
// precedence over us for that address, so a device is changed once at most; it
// keeps the address after a restart. Likewise, the dataplane replaces a WireGuard
// key, once. If another lease has the new key, too, its node has copied it from
// ours on purpose.
//
// For example, two virtual machines are clones, and flannel.1 has the address m
// on both. The node with the younger lease is outranked and takes its derived
// address; the other node keeps m.
func (s *duplicates) resolve(_ context.Context, p *pass) error {
	outranked := p.plan.Outranked() // by device: the peer that has precedence
	maps.DeleteFunc(s.told, func(device, _ string) bool { return outranked[device] == "" })
	if len(outranked) == 0 {
		return nil
	}
	devices := map[string]dataplane.Device{} // as desired; MAC is the address that is derived
	for _, dev := range p.backend.Devices(p.lease) {
		devices[dev.Name] = dev
	}
	for _, name := range slices.Sorted(maps.Keys(outranked)) {
		peer, link := outranked[name], p.links[name] // link: zero if the device is missing
		switch devices[name].Kind.(type) {
		case dataplane.Overlay, dataplane.L2Bridge: // networks of Windows: HNS chooses the address
			if s.told[name] != peer { // logged once for each peer
				s.told[name] = peer
				s.log.Warn("duplicate MAC address: other nodes reject this node's lease; "+
					"if the peer is no clone of this node, it copies the address: "+
					"stop flanneld on the peer, then delete its lease; "+
					"if it is a clone, drain this node, run flanneld cleanup and start flanneld again, so that HNS chooses another address",
					"cause", causeDuplicateMAC, "network", name, "peer", peer, "mac", link.MAC)
			}
		case dataplane.WireGuard:
			s.resolveKey(p, name, peer)
		default:
			if !p.readdressed[name] { // else a pass that follows changes it, or has done so
				s.log.Warn("duplicate MAC address: changing the address of this node's device",
					"cause", causeDuplicateMAC, "device", name, "peer", peer, "from", link.MAC, "to", devices[name].MAC)
				p.readdressed[name] = true
				p.wakeAt(time.Now())
			}
		}
	}
	return nil
}

// resolveKey is resolve for a WireGuard device. It takes a key for a copy only once ours
// is a new one: as long as its file cannot be written, we still have the former key.
func (s *duplicates) resolveKey(p *pass, device, peer string) {
	key := p.links[device].Key
	switch {
	case key == dataplane.PublicKey{}: // the device is missing; a later pass knows
	case !p.readdressed[device]:
		s.log.Warn("duplicate WireGuard key: replacing this node's private key", "cause", causeDuplicateKey, "device", device, "peer", peer, "publicKey", key)
		p.readdressed[device], s.formerKey = true, key
		p.wakeAt(time.Now())
	case key != s.formerKey && s.told[device] != peer:
		s.told[device] = peer
		s.log.Warn("duplicate WireGuard key: other nodes reject this node's lease; "+
			"the peer publishes a copy of its key: stop flanneld on the peer, then delete its lease",
			"cause", causeDuplicateKey, "device", device, "peer", peer, "publicKey", key)
	}
}
