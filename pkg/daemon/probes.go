package daemon

import (
	"errors"

	"flannel/pkg/daemon/reach"
	"flannel/pkg/dataplane"
)

// probesPart tells the prober what the pass has left.
func (d *Daemon) probesPart() part { return part{report: d.updateProbes} }

func (d *Daemon) updateProbes(p *pass) {
	if d.Probes == nil {
		return
	}
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
	d.Probes.Update(reach.Network{Local: p.lease, Peers: p.set.Leases, Addressing: addressing, Skip: wire.Pending,
		Refused: p.refused, Rejects: p.rejects, Retained: p.set.Retained, MTU: p.backend.MTU(),
		Link: p.host.link.Name, LinkIndex: p.host.link.Index, Synced: synced, Hops: wire.Hops,
		NotForwarding: errors.Is(p.failed.err(), dataplane.ErrNotForwarded)})
}
