package daemon

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
	"flannel/subnet"
)

// subnetFilePart keeps the subnet file.
func (d *Daemon) subnetFilePart() part {
	return part{name: partSubnetFile, reconcile: d.writeEnv, needsPeers: true, wakes: []<-chan struct{}{d.EnvFile}}
}

// movedPart writes a subnet file that has another subnet early in the pass, and also while the
// set of peers is not complete: until then, pods start in the former subnet. Only the file knows what an earlier run has left
// in another network, and that the devices need another MAC address (acquire). A file that is needed for that is written last.
func (d *Daemon) movedPart() part {
	return part{name: partSubnetFile, reconcile: func(ctx context.Context, p *pass) error {
		if len(p.former.networks) > 0 || p.failed.has(partDevices) {
			return nil
		}
		env, err := subnet.ReadEnv(d.Settings.SubnetFile)
		if err != nil && !errors.Is(err, subnet.ErrMalformed) { // a malformed file has no subnet
			return err
		}
		other := func(filed, ours netip.Prefix) bool { return filed.IsValid() && filed != ours }
		if !other(env.V4Subnet, p.lease.V4.Subnet) && !other(env.V6Subnet, p.lease.V6.Subnet) {
			return nil
		}
		return d.writeEnv(ctx, p)
	}}
}

// writeEnv writes the subnet file if its content differs, also after another process
// changed or deleted it. If pods that start now would have no paths, it does not put a
// subnet into a file that has none: their packets would leave by the default route. A file
// with another subnet is written: pods must not start with addresses of a subnet that
// another node may have by now.
func (d *Daemon) writeEnv(_ context.Context, p *pass) error {
	if p.failed.has(partSubnetFile) { // movedPart could not write it just now
		return nil
	}
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
