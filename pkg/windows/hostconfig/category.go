package hostconfig

import (
	"context"
	"errors"
	"fmt"
	"time"

	"flannel/pkg/dataplane"
	"flannel/pkg/windows/hns"
)

// The network of a new virtual adapter may be public (moby#39238), whatever that
// of the physical adapter was. Rules of the firewall for private networks, and
// those for the domain, then no longer apply, such as those of WinRM and RDP.
//
// Save writes a category that is not public to the journal, where it stays after
// it was restored. Until then, each call of Restore is in one of these states:
//
//	category now       saved    timer           action
//	any but public     any      categoryBack    after Limits.Rest, done
//	public             private  categorySince   after Limits.Rest, set it, and again
//	                                            each Limits.Rest; after Limits.DHCP,
//	                                            or at once if a group policy forbids
//	                                            it, give up
//	public             domain   categorySince   after Limits.DHCP, give up: only
//	                                            Windows can set it
//	unknown            any      categorySince   after Limits.DHCP, give up
//
// Limits.Rest is 5 s and Limits.DHCP 1 min (they are named for their use in Restore).
//
// The timers run while nothing else is missing. The network need not wait for the
// category. After it is done, a public network is somebody's decision, and the
// saved category is forgotten; after a boot of a host with a static address, it is
// restored once more.

// Causes in the log.
const (
	causeCategoryRestored = "category-restored"
	causeCategoryLost     = "category-lost"    // the category could not be restored, or not be read
	causeCategoryChanged  = "category-changed" // somebody has made the network public
	CauseCategoryPending  = "category-pending" // prepare waits for the category
)

// SavedCategory is the category of the host's network before a switch was made
// or removed. It is never public.
type SavedCategory struct {
	Category hns.Category
	Adapter  string        // name of the physical adapter, as in a Snapshot
	GUID     string        // of the physical adapter
	MAC      dataplane.MAC `json:",omitzero"`  // of the physical adapter
	Done     bool          `json:",omitempty"` // it was restored, or given up
	Host     string        `json:",omitempty"` // GUID of the host's adapter when it was Done; "": it was missing
	Problem  string        `json:",omitempty"` // why it was given up
	Boot     string        `json:",omitempty"` // hns.Stack.BootID when it was saved, restored or given up
}

// categoryLimit is how long the Network List Service may take to answer.
const categoryLimit = 5 * time.Second

// trackTime is the time between looks whether somebody has chosen another
// category.
const trackTime = time.Minute

// categoryKeeper is the part of a Keeper for the category. The daemon's loop and the
// goroutine that watches Windows call it. Keeper.mu does not guard its fields, because it
// must not be held during calls that may hang. The fields belong to the goroutine that
// has put a value into turn.
type categoryKeeper struct {
	turn    chan struct{} // has room for one value, and holds it while a goroutine is at the category
	client  *hns.CategoryClient
	since   time.Time // categorySince; zero: the timer does not run
	back    time.Time // categoryBack
	tracked time.Time // when TrackCategory looked last
	public  bool      // that look has found a public network
	tried   time.Time // when it was set last; it is set again after Limits.Rest
	wasSet  bool      // Windows has accepted a SetCategory since it was saved, which is logged once
	warned  string    // the last error that was logged, "timeout" for all timeouts; see warnCategory
}

// tryTurn takes the turn, and returns false if another goroutine has it. The caller
// empties turn when it is done.
func (c *categoryKeeper) tryTurn() bool {
	select {
	case c.turn <- struct{}{}:
		return true
	default:
		return false
	}
}

// reset stops both timers, and forgets what the last look has found: the next one may be
// at another adapter.
func (c *categoryKeeper) reset() { c.since, c.back, c.public = time.Time{}, time.Time{}, false }

// Unfinished reports whether prepare or cleanup, which end after a switch was made or
// removed, should wait: for the snapshot, or for a category that Restore sets. The
// category of a domain is left to Windows. If only addresses by DHCP are missing, on an
// adapter that is down, they are left to a later run (lacksCable).
func (k *Keeper) Unfinished() bool {
	k.lock() // locks k.mu, and reads the journal if that was not possible before
	defer k.mu.Unlock()
	c := k.journal.Category
	return !k.lacksCable() && (k.journal.Snapshot != nil || c.pending() && c.Category != hns.Domain)
}

// HasSnapshot reports whether the journal holds a snapshot. While it does, something that
// the snapshot has may be missing on the host.
func (k *Keeper) HasSnapshot() bool {
	k.lock()
	defer k.mu.Unlock()
	return k.journal.Snapshot != nil
}

// pending reports whether Restore has to look at the category.
func (c *SavedCategory) pending() bool { return c != nil && !c.Done }

// savedCategory returns the category of the journal; nil: none. Several goroutines may
// have the same pointer, so nobody changes what it points to.
func (k *Keeper) savedCategory() *SavedCategory {
	k.lock()
	defer k.mu.Unlock()
	return k.journal.Category
}

// recordCategory writes the saved category to the journal; nil: none. saveCategory calls it
// before a switch changes, which an error prevents; what was found or done afterwards, settle
// writes.
func (k *Keeper) recordCategory(c *SavedCategory) error {
	k.lock()
	defer k.mu.Unlock()
	if old := k.journal.Category; old == c || old != nil && c != nil && *old == *c {
		return nil
	}
	return k.update(func(j *Journal) { j.Category = c })
}

// readCategory returns the category of an adapter's network. Errors are logged,
// each once in a row, except that the adapter has no network.
func (k *Keeper) readCategory(guid string) (hns.Category, error) {
	c, err := k.category.client.Category(context.Background(), guid)
	if err != nil && !errors.Is(err, hns.ErrNotFound) {
		k.warnCategory("cannot read the category of the host's network, which would be restored", err)
	}
	return c, err
}

// warnCategory logs an error, unless it is that which was logged last.
func (k *Keeper) warnCategory(text string, err error) {
	kind := err.Error()
	if errors.Is(err, hns.ErrTimeout) {
		kind = "timeout" // of this call or an earlier one
	}
	if k.category.warned != kind {
		k.category.warned = kind
		k.log.Warn(text, "cause", causeCategoryLost, "error", err)
	}
}

// saveCategory writes the category of the host's network to the journal, for Save, before
// a switch is made or removed. A category that was not restored yet stays there if the
// network is public. The category of another adapter does not stay: nobody would look at
// it any more. saveCategory waits for another goroutine's turn, for two calls at most.
func (k *Keeper) saveCategory(host, physical hns.Adapter, adapters []hns.Adapter) error {
	k.category.turn <- struct{}{}
	defer func() { <-k.category.turn }()
	saved := k.savedCategory()
	if saved != nil && !saved.isOf(physical, adapters) {
		k.category.reset()
		if err := k.recordCategory(nil); err != nil {
			return err
		}
		saved = nil
	}
	c, err := k.readCategory(host.GUID)
	switch {
	case err != nil && saved == nil:
		return nil // nothing is known that could be restored
	case err != nil: // save the former one again, which is then restored as if it were new
		c = saved.Category
	case c == hns.Public: // Windows may have lost the saved one. If somebody chose public, TrackCategory forgets it
		return nil
	}
	k.category.reset()
	k.category.tried, k.category.wasSet = time.Time{}, false
	return k.recordCategory(&SavedCategory{Category: c, Adapter: physical.Name, GUID: physical.GUID, MAC: physical.MAC, Boot: k.boot})
}

// restoreCategory restores the category of the host's network; see the table above.
// Restore calls it; complete means that nothing else is missing, which stops the timers
// otherwise.
func (k *Keeper) restoreCategory(complete bool, adapters []hns.Adapter, networks []hns.Network) {
	if !k.category.tryTurn() {
		return // the other goroutine restores it, or the next call does
	}
	defer func() { <-k.category.turn }()
	saved := k.savedCategory()
	if !saved.pending() {
		return
	}
	if !complete {
		k.category.reset()
		return
	}
	elapsed := startOrElapsed(&k.category.since)
	var c hns.Category
	host, err := saved.hostAdapter(adapters, networks) // with an error, host is zero
	if err == nil {
		c, err = k.readCategory(host.GUID)
	}
	if err == nil && c != hns.Public {
		if startOrElapsed(&k.category.back) >= k.limits.Rest {
			k.endCategory(saved, host.GUID, "")
		}
		return
	}
	k.category.back = time.Time{} // public, or unknown (err)
	if err == nil && saved.Category != hns.Domain && elapsed >= k.limits.Rest && time.Since(k.category.tried) >= k.limits.Rest {
		k.category.tried = time.Now()
		err = k.category.client.SetCategory(context.Background(), host.GUID, saved.Category)
		refused, _ := errors.AsType[*hns.Error](err)
		switch {
		case refused != nil && refused.Code == hns.AccessDenied:
			k.giveUpCategory(saved, host.GUID, "a group policy forbids to set it")
			return
		case err != nil:
			k.warnCategory("could not restore the category of the host's network, will retry", err)
		case !k.category.wasSet:
			k.category.wasSet = true
			k.log.Info("restored the category of the host's network, which had become public",
				"cause", causeCategoryRestored, "category", saved.Category.String(), "adapter", host.Name)
		}
	}
	switch {
	case elapsed < k.limits.DHCP: // it is tried again
	case err != nil:
		k.giveUpCategory(saved, host.GUID, err.Error())
	case saved.Category == hns.Domain:
		k.giveUpCategory(saved, host.GUID, "only Windows can set it, when a domain controller answers")
	default:
		k.giveUpCategory(saved, host.GUID, "Windows does not keep it")
	}
}

// hostAdapter returns the adapter that has the host's address now; see
// Snapshot.hostAdapter.
func (c *SavedCategory) hostAdapter(adapters []hns.Adapter, networks []hns.Network) (hns.Adapter, error) {
	return c.ofAdapter().hostAdapter(adapters, networks)
}

// isOf reports whether the category is that of a physical adapter, one of adapters; c
// may be nil.
func (c *SavedCategory) isOf(physical hns.Adapter, adapters []hns.Adapter) bool {
	return c != nil && c.ofAdapter().isOf(physical, adapters)
}

// ofAdapter returns a Snapshot that finds the adapter of the category.
func (c *SavedCategory) ofAdapter() *Snapshot {
	return &Snapshot{Adapter: c.Adapter, GUID: c.GUID, MAC: c.MAC}
}

// giveUpCategory ends the restoring without success; host is the GUID of the host's adapter.
func (k *Keeper) giveUpCategory(saved *SavedCategory, host, problem string) {
	k.log.Warn("could not restore the category of the host's network, giving up: rules of the firewall for that category do not apply",
		"cause", causeCategoryLost, "category", saved.Category.String(), "adapter", saved.Adapter, "reason", problem)
	k.endCategory(saved, host, problem)
}

// endCategory records that the category is restored (problem is "") or given up.
func (k *Keeper) endCategory(saved *SavedCategory, host, problem string) {
	k.category.reset()
	done := *saved
	done.Done, done.Host, done.Problem, done.Boot = true, host, problem, k.boot
	k.settleCategory(saved, &done)
}

// settleCategory is settle for the saved category: c takes the place of old, which is not nil.
func (k *Keeper) settleCategory(old, c *SavedCategory) {
	k.lock()
	defer k.mu.Unlock()
	k.settle(func(j *Journal) {
		if j.Category != nil && *j.Category == *old {
			j.Category = c
		}
	})
}

// queueCategoryAfterBoot makes Restore look at the category once after each boot:
// Windows does not keep that of a network that it cannot identify. A host without
// a static address may be in another network now, which may be public for a
// reason: nothing is restored there. It returns whether it has changed the journal.
func (j *Journal) queueCategoryAfterBoot(boot string) (changed bool) {
	if j.Category == nil || j.Category.Boot == boot {
		return false
	}
	again := *j.Category
	if again.Done = j.LastGood == nil; again.Done { // no static address
		again.Boot = boot // one that the host gets later is not from before the boot
	} else {
		again.Problem = ""
	}
	changed = again != *j.Category
	j.Category = &again
	return changed
}

// TrackCategory looks at the category once a minute after it was restored or given
// up. Only the driver's watching goroutine calls it.
//
// If somebody has made the network public, which two looks must find, the saved
// category is forgotten. If somebody, or Windows, has chosen another category, that
// one is saved.
func (k *Keeper) TrackCategory() {
	if !k.category.tryTurn() {
		return
	}
	defer func() { <-k.category.turn }()
	saved := k.savedCategory()
	if saved == nil || !saved.Done || saved.Host == "" || time.Since(k.category.tracked) < trackTime {
		return
	}
	k.category.tracked = time.Now()
	c, err := k.readCategory(saved.Host)
	gaveUp := saved.Problem != ""
	wasPublic := k.category.public
	k.category.public = err == nil && c == hns.Public
	switch {
	case err != nil, c == hns.Public && gaveUp, c == saved.Category && !gaveUp: // nothing new
		return
	case c == hns.Public && !wasPublic: // maybe Windows has not identified the network yet, as after a cable was pulled
		return
	}
	var next *SavedCategory // public: none
	if c == hns.Public {
		k.log.Info("the host's network has become public after its category was restored, leaving it so",
			"cause", causeCategoryChanged, "category", saved.Category.String(), "adapter", saved.Adapter)
	} else {
		chosen := *saved
		chosen.Category, chosen.Problem = c, ""
		next = &chosen
	}
	k.settleCategory(saved, next)
}

// ReadCategory returns the saved category in the journal at path, nil if there is
// none, the name of the adapter that has the host's address now, and the category
// of its network, for flanneld doctor. It changes nothing.
func ReadCategory(ctx context.Context, path string, stack hns.Stack, networks []hns.Network) (saved *SavedCategory, adapter string, c hns.Category, err error) {
	j, err := ReadJournal(path)
	if err != nil || j.Category == nil {
		return nil, "", 0, err
	}
	adapters, err := stack.Adapters()
	if err != nil {
		return nil, "", 0, fmt.Errorf("list adapters: %w", err)
	}
	host, err := j.Category.hostAdapter(adapters, networks)
	if err != nil {
		return nil, "", 0, err
	}
	c, err = hns.NewCategoryClient(stack, categoryLimit).Category(ctx, host.GUID)
	if err != nil {
		return nil, "", 0, fmt.Errorf("read the category of the network of %s: %w", host.Name, err)
	}
	return j.Category, host.Name, c, nil
}
