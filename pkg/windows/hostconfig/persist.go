package hostconfig

// The part of Keeper.Restore that writes to the registry. compare, restoreAddresses and
// restoreRest call the functions of this file with Keeper.mu held, while the journal has a
// snapshot (see Keeper and Journal.Snapshot).

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"flannel/pkg/windows/hns"
)

// persistent returns the static configuration of the snapshot as the registry holds it.
// The MTU stays as stored, and so does the metric if the snapshot has none. If a static
// configuration is stored, what it lacks is added to it: somebody may have changed it while
// flanneld did not run.
func (s *Snapshot) persistent(stored hns.Persistent) hns.Persistent {
	p := hns.Persistent{Addrs: s.static(), Gateways: s.gateways(), Metric: cmp.Or(s.V4Metric, stored.Metric), MTU: stored.MTU}
	if !stored.DHCP {
		addrs, gateways := s.lackedBy(stored)
		p.Addrs, p.Gateways = slices.Concat(stored.Addrs, addrs), slices.Concat(stored.Gateways, gateways)
	}
	return p
}

// lackedBy returns the addresses and gateways of the snapshot that the registry lacks. The
// length of an address's prefix does not count.
func (s *Snapshot) lackedBy(stored hns.Persistent) (addrs []netip.Prefix, gateways []hns.Gateway) {
	addrs = slices.DeleteFunc(s.static(), func(a netip.Prefix) bool {
		return slices.ContainsFunc(stored.Addrs, func(o netip.Prefix) bool { return o.Addr() == a.Addr() })
	})
	gateways = slices.DeleteFunc(s.gateways(), func(g hns.Gateway) bool {
		return slices.ContainsFunc(stored.Gateways, func(o hns.Gateway) bool { return o.Addr == g.Addr })
	})
	return addrs, gateways
}

// isStored reports whether the registry has a static configuration with the addresses and
// gateways of the snapshot, and perhaps others.
func (s *Snapshot) isStored(stored hns.Persistent) bool {
	addrs, gateways := s.lackedBy(stored)
	return !stored.DHCP && len(addrs)+len(gateways) == 0
}

// stored returns what the host's adapter gets at the next boot. If the registry does not
// say whether DHCP configures the adapter, that is a static configuration without
// addresses, with the metric and the MTU that are stored.
func (k *Keeper) stored(host hns.Adapter) (hns.Persistent, error) {
	p, err := k.stack.Persistent(host.Index)
	if errors.Is(err, hns.ErrNotFound) {
		return hns.Persistent{Metric: p.Metric, MTU: p.MTU}, nil
	}
	if err != nil {
		return p, fmt.Errorf("read what is stored for %s: %w", host.Name, err)
	}
	return p, nil
}

// turnDHCPOff writes the static configuration to the registry and notifies the
// DHCP client, once: each notification could make Windows remove the address again.
// Whether the notification makes Windows replace the lease is not known, so that
// restoreAddresses adds the address, and restoreSettings removes the lease.
func (k *Keeper) turnDHCPOff(host hns.Adapter) error {
	stored, err := k.stored(host)
	if err != nil {
		return fmt.Errorf("turn DHCP off on %s: %w", host.Name, err)
	}
	if k.dhcpOff == host.Index && !stored.DHCP {
		return nil // done, and Windows has not obeyed yet
	}
	p := k.journal.Snapshot.persistent(stored)
	if err := k.stack.SetPersistent(host.Index, p); err != nil {
		return fmt.Errorf("turn DHCP off on %s: %w", host.Name, err)
	}
	k.dhcpOff = host.Index
	k.log.Info("turned DHCP off on an adapter that had a static address", "cause", causeStaticRestored, "adapter", host.Name, "addresses", p.Addrs)
	return nil
}

// storeStatic writes the static configuration of the snapshot to the registry if the
// registry has DHCP, or lacks an address or gateway: the next boot would bring that. It
// returns whether it has written. It writes once for each snapshot, and does nothing if
// the registry cannot be read. If it cannot be written, the snapshot ends nevertheless.
func (k *Keeper) storeStatic(host hns.Adapter) (written bool) {
	snapshot := k.journal.Snapshot
	stored, err := k.stored(host)
	if k.staticStored || err != nil || !snapshot.holdsStatic(host) {
		return false
	}
	if snapshot.isStored(stored) {
		return false
	}
	want := snapshot.persistent(stored)
	if err := k.stack.SetPersistent(host.Index, want); err != nil {
		k.log.Warn("could not store the host's static address in the registry, it will be restored after each boot", "adapter", host.Name, "error", err)
		return false
	}
	k.staticStored = true
	k.log.Info("stored the host's static address in the registry, which had another configuration or none", "cause", causeStaticRestored, "adapter", host.Name, "addresses", want.Addrs)
	return true
}

// holdsStatic reports whether the host has the static addresses of the snapshot, and the
// snapshot has any. Somebody may have given the host other ones (see missing).
func (s *Snapshot) holdsStatic(host hns.Adapter) bool {
	static := s.static()
	lacks := func(p netip.Prefix) bool { return !HasAddress(host, p.Addr()) }
	return len(static) > 0 && !slices.ContainsFunc(static, lacks)
}

// restoreSettings restores the mode of DHCP, the interface's metrics and the MTU,
// and removes what DHCP brought instead of a static configuration: its address, from
// which Windows could send, and its gateways. These are default routes that a program
// made (Route.Ours), to which the DHCP client counts, and that the snapshot lacks.
func (k *Keeper) restoreSettings(host hns.Adapter, routes []hns.Route) error {
	s := k.journal.Snapshot
	var errs []error
	if s.becameDHCP(host) {
		errs = append(errs, k.turnDHCPOff(host))
	}
	for _, a := range Addresses(host) {
		if s.isLease(a) && !s.has(a) {
			if err := k.stack.DeleteAddress(host.Index, a.Prefix.Addr()); err != nil {
				errs = append(errs, err)
				continue
			}
			k.log.Info("removed the address that DHCP had given instead of the static one", "cause", causeStaticRestored, "address", a.Prefix, "adapter", host.Name)
		}
	}
	for _, r := range routes {
		isDefault := r.Index == host.Index && r.Ours && r.Dst.Bits() == 0 && r.Dst.Addr().Is4()
		saved := slices.ContainsFunc(s.Routes, func(o SavedRoute) bool { return o.Dst == r.Dst && o.NextHop == r.NextHop })
		if isDefault && s.becameDHCP(host) && !saved {
			errs = append(errs, k.stack.DeleteRoute(r))
		}
	}
	if s.lacksSettings(host) {
		errs = append(errs, k.restoreInterface(host, false, s.V4Metric), k.restoreInterface(host, true, s.V6Metric))
	}
	return errors.Join(errs...)
}

// restoreInterface sets the metric of a family and the MTU, now and, for IPv4, for
// the next boot: hns.Persistent has no settings of IPv6. metric is 0 if the metric was
// automatic or unknown, and then stays as it is. The adapter need not have the family.
func (k *Keeper) restoreInterface(host hns.Adapter, v6 bool, metric int) error {
	settings, err := k.stack.Interface(host.Index, v6)
	if errors.Is(err, hns.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the settings of %s: %w", host.Name, err)
	}
	want := settings
	if metric != 0 {
		want.Metric = metric
	}
	if mtu := k.journal.Snapshot.MTU; mtu != 0 {
		want.MTU = mtu
	}
	if want == settings {
		return nil
	}
	if err := k.stack.SetInterface(host.Index, v6, want); err != nil {
		return fmt.Errorf("restore metric and MTU of %s: %w", host.Name, err)
	}
	if !v6 {
		fixed := 0
		if want.MTU != settings.MTU { // Windows has chosen another MTU, so somebody had fixed this one
			fixed = want.MTU
		}
		if err := k.storeSettings(host, metric, fixed); err != nil {
			return fmt.Errorf("store metric and MTU of %s: %w", host.Name, err)
		}
	}
	k.log.Info("restored the settings of an interface", "cause", causeSettingsRestored, "adapter", host.Name, "ipv6", v6, "metric", want.Metric, "mtu", want.MTU)
	return nil
}

// storeSettings writes the metric and the MTU of IPv4 to the registry; 0 leaves each as
// stored. If the registry has no configuration, the static one of the snapshot is
// written, too, unless the host does not have that: without addresses, the metric alone
// would turn DHCP off.
func (k *Keeper) storeSettings(host hns.Adapter, metric, mtu int) error {
	stored, err := k.stored(host)
	if err != nil {
		return err
	}
	if !stored.DHCP && len(stored.Addrs) == 0 {
		if host.DHCP || !k.journal.Snapshot.holdsStatic(host) {
			return nil
		}
		stored = k.journal.Snapshot.persistent(stored)
	}
	stored.Metric, stored.MTU = cmp.Or(metric, stored.Metric), cmp.Or(mtu, stored.MTU)
	return k.stack.SetPersistent(host.Index, stored)
}
