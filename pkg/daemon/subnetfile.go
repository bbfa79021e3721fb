package daemon

import (
	"context"
	"errors"
	"slices"

	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
	"flannel/subnet"
)

// subnetFilePart keeps the subnet file.
func (d *Daemon) subnetFilePart() part {
	return part{name: partSubnetFile, reconcile: d.writeEnv, needsPeers: true, wakes: []<-chan struct{}{d.EnvFile}}
}

// writeEnv writes the subnet file if its content differs, also after another process
// changed or deleted it. If pods that start now would have no paths, it does not put a
// subnet into a file that has none: their packets would leave by the default route. A file
// with another subnet is written: pods must not start with addresses of a subnet that
// another node may have by now.
func (d *Daemon) writeEnv(_ context.Context, p *pass) error {
	if err := p.lacksPaths(); err != nil {
		env, _ := subnet.ReadEnv(d.Settings.SubnetFile) // after an error, it has no subnet
		if !env.V4Subnet.IsValid() && !env.V6Subnet.IsValid() {
			return err
		}
	}
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

// Why a subnet file without a subnet stays so.
var (
	errNoDevice  = errors.New("not written while a device is missing")
	errPathsRead = errors.New("not written while the existing paths cannot be read")
)

// lacksPaths returns an error if no paths may exist on a node that has just booted: a
// device could not be made, or what exists could not be read, so that no path was tried. A
// device that exists, but could not be set up as desired, is enough: routes lead into it.
// So are paths of which the system refused some.
func (p *pass) lacksPaths() error {
	if p.failed.has(partDevices) && slices.ContainsFunc(p.backend.Devices(p.lease), func(dev dataplane.Device) bool {
		_, found := p.links[dev.Name]
		return !found
	}) {
		return errNoDevice
	}
	if reconcile.IsUnknown(p.failed.of(partPaths)) {
		return errPathsRead
	}
	return nil
}
