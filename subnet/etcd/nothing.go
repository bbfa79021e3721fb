package etcd

import (
	"context"

	"flannel/subnet"
)

// What etcd does not have, and answers with nothing as subnet.Manager says: operators set no public IPs there, and there is
// no cluster with names of nodes, conditions and Events.

// PublicIPs implements subnet.Manager.
func (*Manager) PublicIPs(context.Context) (none subnet.PublicIPs, err error) { return none, nil }

// PublicIPsChanged implements subnet.Manager.
func (*Manager) PublicIPsChanged() <-chan struct{} { return nil }

// NodeName implements subnet.Manager.
func (*Manager) NodeName() string { return "" }

// Report implements subnet.Manager.
func (*Manager) Report(subnet.Report) {}

// ReportUnreachable implements subnet.Manager.
func (*Manager) ReportUnreachable([]string) {}
