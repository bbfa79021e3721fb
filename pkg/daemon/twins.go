package daemon

import (
	"fmt"
	"strings"

	"flannel/pkg/status"
	"flannel/subnet"
)

// maxTwins limits the leases that one message names.
const maxTwins = 5

// twinsPart reports a conflict once, and again when it changes. The answer of /readyz
// has it, too, and stays 200: whoever can write an entry in the store must not be able
// to make this node unready.
func (d *Daemon) twinsPart() part {
	var current string // in this pass; "": no conflict
	logged := ""       // as the log has it
	return part{
		report: func(p *pass) {
			conflict := ""
			if p.known {
				conflict = addressConflict(p.plan.Twins(), p.lease)
			}
			current = conflict
			p.tell(status.OfNode, func(r *status.Report) { r.Conflict = conflict })
		},
		log: func(*pass) {
			if current != "" && current != logged {
				d.Log.Warn("other leases have this node's public IP, and are rejected", "cause", causeAddressConflict, "conflict", current)
			}
			logged = current
		},
	}
}

// addressConflict returns a sentence about other leases that have this node's
// public IP, in etcd or in the annotations of Nodes; "": there are none. Such a
// lease is rejected and changes nothing here. But it is either a second host with
// this node's address, or an entry that somebody wrote to take this node's place.
func addressConflict(twins []string, own subnet.Lease) string {
	if len(twins) == 0 {
		return ""
	}
	var addrs []string
	for _, e := range own.Endpoints() {
		addrs = append(addrs, e.PublicIP.String())
	}
	names := strings.Join(twins[:min(len(twins), maxTwins)], ", ")
	if more := len(twins) - maxTwins; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Sprintf("other leases have this node's public IP %s: %s; give each node an address of its own (--public-ip), or delete the leases that no node owns",
		strings.Join(addrs, " or "), names)
}
