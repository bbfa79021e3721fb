// This file keeps a static configuration over a boot, after which Windows may
// have forgotten it:
//
//	RecordGood        in each pass in which the network works, remembers it
//	SaveGood          saves it as Journal.LastGood
//	begin             makes it the snapshot, which Restore compares with the adapter
//	takeChanges       in Restore, takes over what somebody has changed meanwhile
//	Forget            in cleanup, deletes it

package hostconfig

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"flannel/pkg/file"
	"flannel/pkg/reconcile"
	"flannel/pkg/windows/hns"
)

// readPause is the time between two tries to read a journal that cannot be read.
const readPause = time.Second

// begin reads what an earlier run wrote to the journal, once, and makes the comparisons
// after a boot part of the journal (see compareAfterBoot). Until the file could be read,
// nothing of the host is known, and nothing is written: the file may hold the host's
// settings. The methods of Keeper call begin often, and it reads once in readPause. If the file
// can be read and not written, update makes the comparisons part of it later. k.mu is held,
// except in New.
func (k *Keeper) begin() {
	if k.begun {
		return
	}
	var next Journal
	k.readErr = k.reading.Do(func() (err error) {
		next, err = ReadJournal(k.path)
		return err
	})
	if file.IsUnjudged(k.readErr) {
		k.readErr = reconcile.Unknown(fmt.Errorf("%w; until then, the node does not join, and cleanup removes nothing", k.readErr))
		return
	}
	if k.readErr != nil && !file.Unusable(k.readErr) {
		k.readErr = reconcile.Unknown(fmt.Errorf("%w; until flanneld can read the file, the node does not join, and cleanup removes nothing: end the program that has opened the file, "+
			"or repair its permissions or its disk, or delete it, and with it the host's settings that were not restored yet and the names of flanneld's networks", k.readErr))
		return
	}
	if len(next.Networks)+len(next.Switches) > 0 { // else it may be a new one in the place of one that was lost
		k.uncertain = false
	}
	earlier := next.Snapshot
	changed := next.compareAfterBoot(k.boot)
	k.journal, k.begun = next, true
	if changed {
		k.settle(func(*Journal) {}) // update does it
	}
	switch s := next.Snapshot; {
	case earlier != nil:
		k.log.Warn("an earlier run ended while the host's addresses moved, checking whether they are back", "adapter", s.Adapter, "written", s.Written)
	case s != nil:
		k.log.Info("the machine was rebooted, comparing the host's settings with those before", "adapter", s.Adapter, "written", s.Written)
	}
}

// RecordGood remembers what host has now, when its network works. Save uses it
// if the host has lost its addresses by then. It returns the text of the static
// configuration that SaveGood has to write, for the time after the next boot; "": none. If
// what host has cannot be read, a later pass remembers it.
func (k *Keeper) RecordGood(host, physical hns.Adapter, routes []hns.Route) (unsaved string) {
	k.lock()
	defer k.mu.Unlock()
	s, err := k.newSnapshot(host, physical, routes)
	// After a boot, begin makes LastGood the snapshot. If the boot is unknown, that was not
	// done, and LastGood must not be replaced by what the boot may have changed.
	if err != nil || len(s.Addresses) == 0 || k.journal.Snapshot != nil || k.boot == "" {
		return ""
	}
	k.good = s
	last := s.static4() // nil: DHCP configures the adapter now, and SaveGood deletes a former LastGood
	isSaved := last == nil && k.journal.LastGood == nil || last.equal(k.journal.LastGood) && k.journal.Boot == k.boot
	switch {
	case isSaved:
		return ""
	case last == nil:
		return "DHCP"
	}
	last.Written = time.Time{} // the same settings have the same text
	return fmt.Sprintf("%+v", *last)
}

// SaveGood writes what RecordGood has remembered last to the journal, if the network has
// worked in this run.
func (k *Keeper) SaveGood() error {
	k.lock()
	defer k.mu.Unlock()
	if k.good == nil {
		return nil
	}
	return k.update(func(j *Journal) { j.LastGood, j.Boot = k.good.static4(), k.boot })
}

// Forget deletes the last good configuration and the category, when flanneld
// leaves the host.
func (k *Keeper) Forget() error {
	k.lock()
	defer k.mu.Unlock()
	if k.journal.LastGood == nil && k.journal.Category == nil && len(k.unwritten) == 0 {
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

// compareAfterBoot makes the last good configuration the snapshot, unless there is one, if
// boot is another boot than that of the last comparison. Restore then restores what the
// boot has lost. The same for the category (queueCategoryAfterBoot). boot is "" if it is
// unknown. compareAfterBoot returns whether it has changed the journal.
func (j *Journal) compareAfterBoot(boot string) (changed bool) {
	if boot == "" {
		return false
	}
	if j.Snapshot == nil && j.LastGood != nil && j.Boot != boot {
		s := *j.LastGood
		s.AtBoot, changed = true, true
		j.Snapshot = &s
	}
	return j.queueCategoryAfterBoot(boot) || changed
}

// takeChanges takes over into a snapshot from before a boot what somebody has set while
// flanneld did not run: default gateways, DNS servers, metrics, the MTU. Windows forgets
// settings at a boot, but does not set other ones, except for those that DHCP gives. An error
// IsUnknown: what somebody has set cannot be read, and restoring would undo that.
func (k *Keeper) takeChanges(host hns.Adapter, routes []hns.Route) error {
	snapshot := k.journal.Snapshot
	if !snapshot.AtBoot {
		return nil
	}
	stored, err1 := k.stored(host)
	servers, err2 := k.stack.ManualDNS(host.Index)
	if err := errors.Join(err1, err2); err != nil {
		return reconcile.Unknown(fmt.Errorf("find out what was set on %s since the last boot: %w", host.Name, err))
	}
	next := *snapshot
	if len(stored.Gateways) > 0 && !snapshot.isStored(stored) {
		if next.Routes = defaultRoutes(host, stored, routes); !next.isStored(stored) { // an address is not stored either
			next.Routes = snapshot.Routes
		}
	}
	next.DNS = changedDNS(snapshot.DNS, servers, host.DNS)
	// An error means that nothing is known, and 0 that Windows chooses.
	v4, _ := k.stack.Interface(host.Index, false)
	v6, _ := k.stack.Interface(host.Index, true)
	for saved, now := range map[*int]int{&next.V4Metric: v4.Metric, &next.V6Metric: v6.Metric} {
		if *saved != 0 && now != 0 {
			*saved = now
		}
	}
	if next.MTU != 0 && stored.MTU == host.MTU { // it is not the one that Windows chooses
		next.MTU = host.MTU
	}
	if next.equal(snapshot) {
		return nil
	}
	k.log.Info("somebody has changed the host's settings since the last boot, leaving them so", "adapter", host.Name,
		"gateways", next.gateways(), "dns", next.DNS, "metric", next.V4Metric, "ipv6_metric", next.V6Metric, "mtu", next.MTU)
	k.settle(func(j *Journal) {
		if j.Snapshot == nil || j.holds(snapshot) { // nil: somebody has deleted the file
			j.Snapshot = &next
		}
	})
	return nil
}

// changedDNS returns the DNS servers of a snapshot after somebody has set manual ones, which
// the host has. A family without any is one of which Windows may have forgotten them.
func changedDNS(saved, manual, has []netip.Addr) []netip.Addr {
	for _, v6 := range []bool{false, true} {
		inFamily := func(a netip.Addr) bool { return a.Is6() == v6 }
		outside := func(a netip.Addr) bool { return !inFamily(a) }
		before, now := slices.DeleteFunc(slices.Clone(saved), outside), slices.DeleteFunc(slices.Clone(manual), outside)
		differ := lacksAny(now, before) || lacksAny(before, now)
		if len(now) > 0 && differ && !lacksAny(has, now) {
			saved = append(slices.DeleteFunc(slices.Clone(saved), inFamily), now...)
		}
	}
	return saved
}

// defaultRoutes returns the default routes by the gateways that are stored. A route that the
// host has keeps its metric, since that of the registry may be "automatic".
func defaultRoutes(host hns.Adapter, stored hns.Persistent, routes []hns.Route) (defaults []SavedRoute) {
	for _, g := range stored.Gateways {
		r := SavedRoute{Dst: netip.PrefixFrom(netip.IPv4Unspecified(), 0), NextHop: g.Addr, Metric: g.Metric}
		for _, o := range routes {
			if o.Index == host.Index && o.Dst == r.Dst && o.NextHop == r.NextHop {
				r.Metric = o.Metric
			}
		}
		defaults = append(defaults, r)
	}
	return defaults
}
