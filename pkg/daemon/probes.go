package daemon

import (
	"errors"

	"flannel/backend"
	"flannel/pkg/daemon/reach"
	"flannel/pkg/dataplane"
)

// probesPart tells the prober what the pass has left, unless it is the same as before: most
// passes change nothing, and the prober looks at each peer.
func (d *Daemon) probesPart() part {
	var last reach.Network
	var lastWire backend.Wire
	return part{report: func(p *pass) {
		if d.Probes == nil {
			return
		}
		next, wire := p.probed()
		if lastWire != wire || !next.Equal(&last) {
			last, lastWire = next, wire
			d.Probes.Update(next)
		}
	}}
}

// probed returns what the prober must know, and the wire, by which its function Skip decides.
func (p *pass) probed() (reach.Network, backend.Wire) {
	wire, addressing := p.backend.Wire(), reach.None
	switch {
	case wire.Paths && wire.Echo:
		addressing = reach.Tunnels
	case wire.Paths && wire.Bridges:
		addressing = reach.Bridges
	}
	// What other parts do, such as the firewall and the pods' bridge, does not keep this
	// node from reaching peers, or is not known to do so.
	synced := p.known && !p.failed.has(partConfig, partDevices, partPeers, partPaths)
	return reach.Network{Local: p.lease, Peers: p.set.Leases, Addressing: addressing, Skip: wire.Pending,
		Refused: p.refused, Rejects: p.rejects, Retained: p.set.Retained, MTU: p.backend.MTU(),
		Link: p.host.link.Name, LinkIndex: p.host.link.Index, Synced: synced, Hops: wire.Hops,
		NotForwarding: errors.Is(p.failed.err(), dataplane.ErrNotForwarded)}, wire
}
