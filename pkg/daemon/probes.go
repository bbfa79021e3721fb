package daemon

import (
	"errors"

	"flannel/pkg/daemon/reach"
	"flannel/pkg/dataplane"
)

// probesPart tells the prober what the pass has left.
func (d *Daemon) probesPart() part {
	return part{report: onNews(func(n reach.Network) { d.Probes.Update(n) })}
}

// onNews returns a report of a part that calls update, unless the pass has left the same as the
// one before: most passes change nothing, and the prober looks at each peer.
func onNews(update func(reach.Network)) func(*pass) {
	var last reach.Network
	return func(p *pass) {
		if next := p.probed(); !next.Equal(&last) {
			last = next
			update(next)
		}
	}
}

// probed returns what the prober must know.
func (p *pass) probed() reach.Network {
	wire, addressing := p.backend.Wire(), reach.None
	switch { // Echo: tunnel devices answer. Bridges: there are none, and the pods' bridges answer
	case wire.Paths && wire.Echo:
		addressing = reach.Tunnels
	case wire.Paths && wire.Bridges:
		addressing = reach.Bridges
	}
	// What other parts do, such as the firewall and the pods' bridge, does not keep this
	// node from reaching peers, or is not known to do so.
	synced := p.known && !p.failed.has(partConfig, partDevices, partPeers, partPaths)
	return reach.Network{Local: p.lease, Peers: p.set.Leases, Addressing: addressing, Typed: !wire.Untyped,
		Refused: p.refused, Rejects: p.rejects, Retained: p.set.Retained, MTU: p.backend.MTU(),
		Link: p.host.link.Name, LinkIndex: p.host.link.Index, Synced: synced, Hops: wire.Hops,
		NotForwarding: errors.Is(p.failed.err(), dataplane.ErrNotForwarded)}
}
