// This file keeps a static configuration over a boot, after which Windows may
// have forgotten it:
//
//	RecordGood        in each pass in which the network works, saves it as Journal.LastGood
//	compareAfterBoot  in New, makes it the snapshot, which Restore compares with the adapter
//	takeGateways      in Restore, takes over the default gateways if somebody has replaced them
//	Forget            in cleanup, deletes it

package hostconfig

import (
	"net/netip"
	"slices"

	"flannel/pkg/windows/hns"
)

// RecordGood remembers what host has now, when its network works. Save uses it
// if the host has lost its addresses by then. A static configuration is written
// to the journal, too, for the time after the next boot.
func (k *Keeper) RecordGood(host, physical hns.Adapter, routes []hns.Route) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.newSnapshot(host, physical, routes)
	// After a boot, New makes LastGood the snapshot. If the boot is unknown, that was not
	// done, and LastGood must not be replaced by what the boot may have changed.
	if len(s.Addresses) == 0 || k.journal.Snapshot != nil || k.boot == "" {
		return nil
	}
	k.good = s
	last := s.static4() // nil deletes a former LastGood: DHCP configures the adapter now
	if last == nil && k.journal.LastGood == nil || last.equal(k.journal.LastGood) && k.journal.Boot == k.boot {
		return nil
	}
	return k.update(func(j *Journal) { j.LastGood, j.Boot = last, k.boot })
}

// Forget deletes the last good configuration and the category, when flanneld
// leaves the host.
func (k *Keeper) Forget() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.journal.LastGood == nil && k.journal.Category == nil {
		return nil
	}
	return k.update(func(j *Journal) { j.LastGood, j.Boot, j.Category = nil, "", nil })
}

// static4 returns the part of a snapshot that a machine must have after a boot:
// a static IPv4 configuration, or nil if DHCP configures the adapter, in which
// case another network than before may be right. Other routes than default ones
// are left out, because those of programs end with a boot.
func (s *Snapshot) static4() *Snapshot {
	if len(s.static()) == 0 {
		return nil
	}
	c := *s
	c.Addresses = slices.DeleteFunc(slices.Clone(s.Addresses), func(a SavedAddress) bool { return !a.Manual })
	c.Routes = slices.DeleteFunc(slices.Clone(s.Routes), func(r SavedRoute) bool { return r.Dst.Bits() != 0 || r.Dst.Addr().Is6() })
	return &c
}

// compareAfterBoot makes the last good configuration the snapshot, if this is
// another boot than that of the last comparison. Restore then restores what the
// boot has lost.
func (k *Keeper) compareAfterBoot() {
	last := k.journal.LastGood
	if last == nil || k.boot == "" || k.journal.Boot == k.boot {
		return
	}
	s := *last
	s.AtBoot = true
	if err := k.update(func(j *Journal) { j.Snapshot = &s }); err != nil {
		k.log.Warn("cannot compare the host's settings with those before the reboot", "error", err)
		return
	}
	k.log.Info("the machine was rebooted, comparing the host's settings with those before", "adapter", s.Adapter, "written", s.Written)
}

// takeGateways replaces the default routes of a snapshot from before a boot if the registry
// has the static addresses of the snapshot, and other gateways: Windows has forgotten
// nothing then, and somebody has changed the gateway while flanneld did not run. A route
// that the host has keeps its metric, since that of the registry may be "automatic".
func (k *Keeper) takeGateways(host hns.Adapter, routes []hns.Route) {
	snapshot := k.journal.Snapshot
	stored, err := k.stored(host)
	if !snapshot.AtBoot || err != nil || len(stored.Gateways) == 0 || snapshot.isStored(stored) {
		return
	}
	next := *snapshot
	next.Routes = nil // there are no others than default routes, see static4
	for _, g := range stored.Gateways {
		r := SavedRoute{Dst: netip.PrefixFrom(netip.IPv4Unspecified(), 0), NextHop: g.Addr, Metric: g.Metric}
		for _, o := range routes {
			if o.Index == host.Index && o.Dst == r.Dst && o.NextHop == r.NextHop {
				r.Metric = o.Metric
			}
		}
		next.Routes = append(next.Routes, r)
	}
	if !next.isStored(stored) {
		return
	}
	k.log.Info("somebody has changed the host's gateways since the last boot, leaving them so", "adapter", host.Name, "gateways", stored.Gateways)
	if err := k.update(func(j *Journal) { j.Snapshot = &next }); err != nil {
		k.warn(host, err)
		k.journal.Snapshot = &next // until the journal can be written
	}
}
