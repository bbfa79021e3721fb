package daemon

import (
	"context"

	"flannel/subnet"
)

// subnetFilePart keeps the subnet file.
func (d *Daemon) subnetFilePart() part {
	return part{name: "subnet-file", reconcile: d.writeEnv, needsPeers: true, wakes: []<-chan struct{}{d.EnvFile}}
}

// writeEnv writes the subnet file if its content differs, also after another process
// changed or deleted it.
func (d *Daemon) writeEnv(_ context.Context, p *pass) error {
	changed, err := subnet.WriteEnv(d.Settings.SubnetFile, subnet.Env{
		V4Network: p.config.V4.Prefix, V4Subnet: p.lease.V4.Subnet,
		V6Network: p.config.V6.Prefix, V6Subnet: p.lease.V6.Subnet,
		MTU: p.backend.MTU(), IPMasq: d.Settings.IPMasq,
		FormerV4: p.former.v4, FormerV6: p.former.v6,
	})
	if changed {
		d.Log.Info("wrote the subnet file", "path", d.Settings.SubnetFile, "mtu", p.backend.MTU())
	}
	return err
}
