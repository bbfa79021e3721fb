package daemon

import (
	"fmt"

	"flannel/backend"
	"flannel/pkg/status"
)

// windowsPart reports once what keeps Linux and Windows nodes from reaching each other,
// and again when it changes.
func (d *Daemon) windowsPart() part {
	logged := ""
	return part{
		report: func(p *pass) {
			advice := advice(p.set.Windows, p.backend)
			p.store.Advice = advice
			p.tell(status.OfNode, func(r *status.Report) { r.Advice = advice })
		},
		log: func(p *pass) {
			advice := p.store.Advice
			if advice != "" && advice != logged {
				d.Log.Warn("Linux and Windows nodes may not reach each other", "cause", causeWindowsMismatch, "reason", advice)
			}
			logged = advice
		},
	}
}

// advice returns what the operator should change so that Linux and Windows
// nodes reach each other; "": nothing. windows is the name of a node that runs Windows
// (subnet.Set); "": none is known.
func advice(windows string, b backend.Backend) string {
	if windows != "" {
		if reason := b.ForWindows(); reason != "" {
			return fmt.Sprintf("%s runs Windows, which does not support this node's configuration. %s", windows, reason)
		}
	}
	return ""
}
