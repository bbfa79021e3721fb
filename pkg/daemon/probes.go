package daemon

import (
	"errors"
	"slices"

	"flannel/pkg/daemon/reach"
	"flannel/pkg/dataplane"
)

// updateProbes passes the result of a pass to the prober.
func (d *Daemon) updateProbes(n *node, failed failures) {
	if d.Probes == nil {
		return
	}
	wire, addressing := n.backend.Wire(), reach.None
	switch {
	case wire.Paths && wire.Echo:
		addressing = reach.Tunnels
	case wire.Paths && wire.Bridges:
		addressing = reach.Bridges
	}
	// What other parts do, such as the firewall and the pods' bridge, does not keep this
	// node from reaching peers, or is not known to do so.
	synced := n.last.peersKnown
	for _, part := range []string{"config", "devices", "peers", "dataplane"} {
		synced = synced && !slices.ContainsFunc(failed, func(f failure) bool { return f.part == part })
	}
	d.Probes.Update(reach.Network{Local: n.lease, Peers: n.last.peers, Addressing: addressing, Skip: wire.Pending,
		Refused: n.last.refused, Rejects: n.last.rejects, Retained: n.last.retained, MTU: n.backend.MTU(),
		Link: n.host.link.Name, LinkIndex: n.host.link.Index, Synced: synced, Hops: wire.Hops,
		NotForwarding: errors.Is(failed.err(), dataplane.ErrNotForwarded)})
}
