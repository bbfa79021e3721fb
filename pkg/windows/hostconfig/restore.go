// Package hostconfig saves and restores the host's own settings on a Windows
// adapter: its addresses, whether DHCP configures them, routes, interface
// metrics, MTU, DNS servers, and the category of its network.
//
// The first HNS network on an adapter binds a virtual switch to it. Windows
// then moves the host's addresses to a new virtual adapter with the same MAC
// address, which takes 5 to 25 seconds; when the last network is deleted, it
// moves them back. Some settings are lost on the way. For example, Ethernet has
// 10.99.0.2/24 and a default route via 10.99.0.1. When flanneld makes the
// network flannel.4096, Ethernet keeps its name and loses the address, and
// "vEthernet (Ethernet)" appears, has no address for some seconds, and then
// gets 10.99.0.2/24, perhaps without a route to 169.254.169.254 that somebody
// had added.
//
// A Keeper saves the settings to the journal before each such step, and
// restores afterwards what Windows has not restored in time. Windows may also
// forget a static configuration at a boot. Therefore a static configuration is
// restored to the registry, too, and the last good one stays in the journal and
// is compared once after each boot.
package hostconfig

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
	"flannel/pkg/windows/hns"
)

// Limits are how long Windows gets to restore settings before a Keeper does.
type Limits struct {
	Address time.Duration // addresses set by hand
	DHCP    time.Duration // addresses from DHCP
	// Rest is the limit for routes and DNS servers, and how long nothing may be
	// missing before the snapshot is deleted: Windows may not be done yet.
	Rest time.Duration
}

// Keeper saves and restores the settings of one adapter. It works whether or
// not there is a network, since without addresses the daemon cannot reach the
// API that the configuration comes from. The daemon's loop and the driver's
// watching goroutine both call it, and one waits for the other: compare and all that
// compare calls run with mu held. No call of the IP stack that they make hangs.
//
// While the journal holds a snapshot, each call of Restore is in one of these
// states and takes the action. A timer starts with the first call in its state;
// missingSince goes on from the virtual adapter to its addresses.
//
//	missing                  timer           action
//	physical adapter         goneSince       wait, and reset the other timers; at boot, give up
//	                                         after Limits.DHCP
//	virtual adapter          missingSince    wait, and reset leaseSince, incompleteSince and
//	                                         completeSince
//	addresses                missingSince    wait; after Limits.Address, turn DHCP off and
//	                                         add those set by hand
//	addresses, while the     leaseSince      wait; after Limits.DHCP, add the others, too
//	adapter is up
//	some addresses, which    incompleteSince as in the row of routes, but never give up
//	Windows refuses
//	addresses, and one of    missingSince    wait; turn DHCP off and add those set by
//	169.254.0.0/16 is there                  hand at once
//	addresses, and a lease   missingSince    wait; after Limits.Rest, turn DHCP off and
//	is there instead                         add those set by hand
//	only routes, DNS, or     incompleteSince wait; after Limits.Rest, restore them; if
//	settings                                 Windows refuses, retry without waiting,
//	                                         and after Limits.DHCP give up
//	nothing                  completeSince   after Limits.Rest, write a static configuration
//	                                         to the registry if that has another one or
//	                                         none, and start the timer again; else
//	                                         delete the snapshot
//
// "Wait" means that Restore returns a dataplane.WaitError. It keeps the driver from
// making or using a network, as every error of Restore does. With a snapshot from
// before a boot (AtBoot), Restore waits also while Windows refuses something. DNS servers
// that DHCP gave are never missing (Snapshot.servers).
type Keeper struct {
	path   string // of the journal
	limits Limits
	stack  hns.Stack
	log    *slog.Logger

	mu              sync.Mutex
	journal         Journal
	begun           bool              // begin could read the file; before that, journal is empty, and nothing is written
	reading         reconcile.Backoff // of begin
	readErr         error             // of the last call of begin; with begun, the file is not a journal of flanneld
	unwritten       []func(*Journal)  // changes that are in journal, and that settle could not write
	writing         reconcile.Backoff // of WriteSettled
	good            *Snapshot         // of the last RecordGood of this run, for Save; nil: none. Journal.LastGood is its static part
	boot            string            // hns.Stack.BootID; "": unknown
	goneSince       time.Time         // zero: the timer does not run
	missingSince    time.Time
	leaseSince      time.Time
	downSince       time.Time // since when only addresses by DHCP are missing, on an adapter that is down; see lacksCable
	incompleteSince time.Time
	completeSince   time.Time
	otherSince      time.Time // since when Save waits for another adapter's settings; see awaitOther
	lost            bool      // something of the snapshot was missing, so its return is logged
	staticMissing   bool      // the last Restore found that an address of the snapshot that was set by hand is missing
	darkSince       time.Time // since when TrackDark has found no address; zero with a snapshot: see missingSince
	upSince         time.Time // since when TrackDark has found the physical adapter up
	uncertain       bool      // the journal may be in the place of a lost one (see begin), for TrackDark; begin and setReachable clear it
	staticStored    bool      // storeStatic has written for the snapshot
	dhcpOff         int       // index of the adapter whose DHCP was turned off, until Windows obeys; 0: none
	lastWarning     string
	pods            []netip.Prefix // routes by a gateway into these networks are not saved: peers come and go
	category        categoryKeeper // guarded by its turn instead of mu; the saved category in the journal is guarded by mu
}

// New returns a Keeper that continues with what an earlier run wrote to the
// journal at path.
func New(path string, limits Limits, stack hns.Stack, log *slog.Logger) *Keeper {
	k := &Keeper{path: path, limits: limits, stack: stack, log: log, uncertain: true, reading: reconcile.Backoff{First: readPause}, writing: reconcile.Backoff{First: readPause}}
	k.category.client, k.category.turn = hns.NewCategoryClient(stack, categoryLimit), make(chan struct{}, 1)
	var err error
	if k.boot, err = stack.BootID(); err != nil {
		log.Warn("cannot find out whether the machine was rebooted, its last good settings are not compared", "error", err)
	}
	k.begin()
	switch {
	case k.begun && k.readErr != nil:
		log.Warn("cannot use the adapter's settings that an earlier run saved, nothing will be restored", "error", k.readErr)
	case k.readErr != nil:
		log.Warn("cannot read the adapter's settings that an earlier run saved, will retry", "error", k.readErr)
	}
	return k
}

// lock locks mu. If the journal could not be read so far, lock tries again.
func (k *Keeper) lock() {
	k.mu.Lock()
	k.begin()
}

// ReadErr is the error of reading the journal; nil: it was read, or there is none. Cleanup
// reports it. If it IsUnknown, the Keeper reads again; else the file is not a journal of
// flanneld, and the next update sets it aside.
func (k *Keeper) ReadErr() error {
	k.lock()
	defer k.mu.Unlock()
	return k.readErr
}

// Pending reports whether the journal holds a snapshot or a category, which Restore
// compares with the adapter, or could not be read so far.
func (k *Keeper) Pending() bool {
	k.lock()
	defer k.mu.Unlock()
	return !k.begun || k.journal.Snapshot != nil || k.journal.Category.pending()
}

// Restore restores what is missing of the snapshot for longer than the limits,
// and then the category; see Keeper and SavedCategory. networks are all HNS
// networks. An error that IsUnknown means that the journal, the adapters, or the registry after
// a boot could not be read.
func (k *Keeper) Restore(networks []hns.Network) error {
	if !k.Pending() {
		return nil
	}
	adapters, err := k.restoreSnapshot(networks)
	// An error stops the timers of the category, and the adapters, perhaps nil, are not used then.
	k.restoreCategory(err == nil, adapters, networks)
	return err
}

// restoreSnapshot is the part of Restore for the snapshot. It also returns the adapters,
// for that of the category.
func (k *Keeper) restoreSnapshot(networks []hns.Network) ([]hns.Adapter, error) {
	k.lock()
	defer k.mu.Unlock()
	if !k.begun {
		return nil, k.readErr
	}
	adapters, err1 := k.stack.Adapters()
	routes, err2 := k.stack.Routes()
	if err := errors.Join(err1, err2); err != nil {
		return nil, reconcile.Unknown(fmt.Errorf("list adapters and routes, to restore the host's settings: %w", err))
	}
	for s := k.journal.Snapshot; s != nil; s = k.journal.Snapshot {
		err := k.compare(adapters, routes, networks)
		if k.journal.Snapshot == nil || k.journal.holds(s) {
			return adapters, err
		}
		// Before compare wrote to the journal, another process had saved another snapshot there,
		// perhaps of another adapter: err is not about that one.
	}
	return adapters, nil
}

// compare compares the snapshot with the adapters, and acts as the table of Keeper
// says. Afterwards, the journal may hold another snapshot, which is not compared yet.
func (k *Keeper) compare(adapters []hns.Adapter, routes []hns.Route, networks []hns.Network) error {
	snapshot := k.journal.Snapshot
	host, err := snapshot.hostAdapter(adapters, networks)
	if err != nil {
		return k.awaitAdapter(adapters, err)
	}
	k.goneSince = time.Time{}
	if err := k.takeChanges(host, routes); err != nil {
		return err
	}
	if !k.journal.holds(snapshot) { // another process has saved one
		return nil
	}
	snapshot = k.journal.Snapshot // which takeChanges may have changed
	if !host.DHCP {
		k.dhcpOff = 0 // Windows has obeyed
	}
	missing := snapshot.missing(host, routes)
	k.lost, k.staticMissing = k.lost || !missing.none(), len(missing.manual) > 0
	if len(missing.addresses()) > 0 {
		k.completeSince = time.Time{}
		return k.restoreAddresses(host, routes, missing)
	}
	k.missingSince, k.leaseSince, k.downSince = time.Time{}, time.Time{}, time.Time{}
	if !missing.none() {
		k.completeSince = time.Time{}
		return k.restoreRest(host, routes, missing)
	}
	if startOrElapsed(&k.completeSince) < k.limits.Rest {
		return nil // nothing is missing, so the driver may go on
	}
	if k.storeStatic(host) {
		k.completeSince = time.Time{} // the DHCP client was notified, and may remove the address again
		return nil
	}
	if k.lost {
		k.log.Info("the host has its addresses, routes and DNS servers again", "cause", causeComplete, "adapter", host.Name)
	}
	k.deleteSnapshot()
	return nil
}

// awaitAdapter is the part of compare while no adapter can have the host's addresses; err
// says which one is missing. A physical adapter that returns is new to Windows, which then
// gets as long as after a change of the switch.
func (k *Keeper) awaitAdapter(adapters []hns.Adapter, err error) error {
	snapshot := k.journal.Snapshot
	k.leaseSince, k.downSince, k.incompleteSince, k.completeSince = time.Time{}, time.Time{}, time.Time{}, time.Time{}
	if _, exists := snapshot.physical(adapters); exists {
		k.goneSince = time.Time{}
		elapsed := startOrElapsed(&k.missingSince) // also with DHCP: TrackDark reads the timer
		k.staticMissing = snapshot.hasManual() && elapsed < k.limits.DHCP
		return err
	}
	k.missingSince, k.dhcpOff, k.staticStored = time.Time{}, 0, false
	elapsed := startOrElapsed(&k.goneSince)
	k.staticMissing = snapshot.hasManual() && elapsed < k.limits.DHCP
	if elapsed >= k.limits.DHCP && snapshot.AtBoot {
		k.log.Warn("the adapter that had the host's addresses before the reboot is gone, forgetting its settings", "adapter", snapshot.Adapter)
		k.deleteSnapshot()
		return nil
	}
	return err
}

// lacksCable reports whether nothing but addresses by DHCP has been missing for Limits.DHCP,
// on an adapter that is down, as without a cable. They come when the adapter is up, so
// Unfinished and awaitOther do not wait for them.
func (k *Keeper) lacksCable() bool {
	return !k.downSince.IsZero() && time.Since(k.downSince) >= k.limits.DHCP
}

// RestoreStatic calls Restore, and returns its error if an address that was set by
// hand is missing, or its adapter is: what the host has in its place, such as a lease,
// is not the host's address, and goes as soon as the address is back. The address may
// never come back: after Limits.DHCP without the adapter, or Limits.Address (when Restore
// adds the address) plus Limits.DHCP without the address, this is no error any more. The
// loop calls RestoreStatic before it chooses the underlay.
func (k *Keeper) RestoreStatic(networks []hns.Network) error {
	err := k.Restore(networks)
	k.lock()
	defer k.mu.Unlock()
	if k.staticMissing || reconcile.IsUnknown(err) {
		return err
	}
	return nil
}

// NeedsStatic reports whether the snapshot has addresses set by hand, or is not known yet.
// Otherwise, the driver does not call RestoreStatic.
func (k *Keeper) NeedsStatic() bool {
	k.lock()
	defer k.mu.Unlock()
	return !k.begun || k.journal.Snapshot.hasManual()
}

// restoreAddresses adds addresses that are missing for longer than the limits. It returns
// a WaitError also after it has added all: the next call of Restore looks whether the
// adapter has them. If Windows refuses some, and the adapter has others of the snapshot,
// restoreAddresses also restores the rest.
func (k *Keeper) restoreAddresses(host hns.Adapter, routes []hns.Route, missing losses) error {
	elapsed := startOrElapsed(&k.missingSince)
	k.staticMissing = k.staticMissing && elapsed < k.limits.Address+k.limits.DHCP
	snapshot := k.journal.Snapshot
	// A lease is any IPv4 address that is not set by hand, where the snapshot has a static configuration.
	hasLease := snapshot.becameDHCP(host) && slices.ContainsFunc(Addresses(host), snapshot.isLease)
	var add []netip.Prefix
	if elapsed >= k.limits.Address || hasAPIPA(host) || hasLease && elapsed >= k.limits.Rest { // Windows has finished
		add = append(add, missing.manual...)
	}
	if len(add) > 0 && snapshot.becameDHCP(host) {
		if err := k.turnDHCPOff(host); err != nil {
			k.warn(host, err)
		}
	}
	if !host.Up { // such as without a cable: no DHCP server answers
		k.leaseSince = time.Time{}
	} else if startOrElapsed(&k.leaseSince) >= k.limits.DHCP {
		add = append(add, missing.leased...)
	}
	if host.Up || len(missing.manual) > 0 {
		k.downSince = time.Time{}
	} else {
		startOrElapsed(&k.downSince)
	}
	var errs []error
	for _, p := range add {
		// The address is static then, also if DHCP had given it. If it exists, it came since the adapters were listed.
		err := k.stack.AddAddress(host.Index, p)
		if err != nil && !errors.Is(err, hns.ErrExists) {
			errs = append(errs, fmt.Errorf("restore the address %s of %s: %w", p, host.Name, err))
			continue
		}
		k.log.Info("restored an address that was lost when the adapter's switch changed", "cause", causeAddressRestored, "address", p, "adapter", host.Name)
	}
	if len(errs) > 0 && missing.beyondAddresses() && slices.ContainsFunc(Addresses(host), snapshot.has) {
		return errors.Join(append(errs, k.restoreRest(host, routes, missing))...)
	}
	k.incompleteSince = time.Time{}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	var names []string
	for _, p := range missing.addresses() {
		names = append(names, p.Addr().String())
	}
	return dataplane.Waiting(CauseNoAddress, "%s to come back on %s", strings.Join(names, ", "), host.Name)
}

// restoreRest restores everything except addresses. Windows refuses a route whose
// gateway does not exist any more, for example. That must not block the network,
// so an error is logged and not returned, and eventually ends the attempts; so
// does a setting that Windows accepts and does not apply.
func (k *Keeper) restoreRest(host hns.Adapter, routes []hns.Route, missing losses) error {
	elapsed := startOrElapsed(&k.incompleteSince)
	if elapsed < k.limits.Rest {
		return dataplane.Waiting(causeNoRoutes, "routes and DNS servers to come back on %s", host.Name)
	}
	var errs []error
	if missing.settings {
		errs = append(errs, k.restoreSettings(host, routes))
	}
	for _, r := range missing.routes {
		// Ours, of hns.Route: a program made it, as it made the lost one. A snapshot has only such routes.
		err := k.stack.AddRoute(hns.Route{Dst: r.Dst, NextHop: r.NextHop, Index: host.Index, Metric: r.Metric, Ours: true})
		if err == nil {
			k.log.Info("restored a route that was lost when the adapter's switch changed", "cause", causeRouteRestored, "route", r.Dst, "via", r.NextHop, "adapter", host.Name)
		}
		errs = append(errs, err)
	}
	if missing.dns != nil {
		err := k.stack.SetDNS(host.Index, missing.dns)
		if err == nil {
			k.log.Info("restored the DNS servers that were lost when the adapter's switch changed", "cause", causeDNSRestored, "servers", missing.dns, "adapter", host.Name)
		}
		errs = append(errs, err)
	}
	err := errors.Join(errs...)
	if elapsed >= k.limits.DHCP && len(missing.addresses()) == 0 {
		k.log.Warn("could not restore all host settings, giving up", "adapter", host.Name, "error", err)
		k.deleteSnapshot()
		return nil
	}
	if err != nil {
		k.warn(host, err)
		// At boot the snapshot has only static IPv4 settings. If a network was made now, Save
		// would keep this snapshot, and the host's other settings could be lost.
		if !k.journal.Snapshot.AtBoot {
			return nil
		}
	}
	return dataplane.Waiting(causeNoRoutes, "routes and DNS servers to be back on %s", host.Name)
}

// warn logs an error, unless it is that which was logged last for the snapshot.
func (k *Keeper) warn(host hns.Adapter, err error) {
	if err.Error() != k.lastWarning {
		k.lastWarning = err.Error()
		k.log.Warn("could not restore all host settings, will retry", "adapter", host.Name, "error", err)
	}
}
