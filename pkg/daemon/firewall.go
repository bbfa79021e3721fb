package daemon

import (
	"context"

	"flannel/pkg/firewall"
)

// firewallPart keeps the rules of iptables or nftables.
func (d *Daemon) firewallPart() part {
	return part{name: "firewall", reconcile: d.applyFirewall, wakes: []<-chan struct{}{d.Firewall.Changes()}, woken: d.Firewall.Check}
}

// applyFirewall is the part of a pass that sets the host's firewall rules.
func (d *Daemon) applyFirewall(ctx context.Context, p *pass) (err error) {
	s := &d.Settings
	c := firewall.Config{
		Writer:     firewall.IPTables,
		V4:         firewall.Family{Network: p.config.V4.Prefix, Subnet: p.lease.V4.Subnet},
		V6:         firewall.Family{Network: p.config.V6.Prefix, Subnet: p.lease.V6.Subnet},
		Masquerade: s.IPMasq, Forward: s.ForwardRules, RandomFully: s.RandomFully,
	}
	if p.config.NFTables {
		c.Writer = firewall.NFTables
	}
	p.rules, err = d.Firewall.Apply(ctx, c)
	return err
}
