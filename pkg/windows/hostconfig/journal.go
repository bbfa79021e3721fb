package hostconfig

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"

	"flannel/pkg/file"
	"flannel/pkg/windows/hns"
)

// Journal is the content of hns.json beside the subnet file. It is written before
// each step that it describes, so that a crash between any two steps loses
// nothing. Keeper writes it, with its mu held; the doctor and the bundle only
// read it.
type Journal struct {
	// Networks are the names of HNS networks that flanneld made or adopted. It
	// owns them, whatever their names are.
	Networks []string `json:",omitempty"`
	// Switches are the names of the networks that flanneld prepare made. Only
	// flanneld cleanup deletes them.
	Switches []string `json:",omitempty"`
	// Requested is what HNS was asked for, by the IDs of the networks that it
	// made, since it may read back something else.
	Requested map[string]Requested `json:",omitempty"`
	// Snapshot is what an adapter had before a switch was bound or removed. It
	// is deleted once the host has all of it again; nil: nothing is missing.
	Snapshot *Snapshot `json:"Before,omitempty"`
	// LastGood is the static configuration that the host had when its network
	// worked last; nil: DHCP configures it. It is compared with the adapter
	// once after each boot.
	LastGood *Snapshot `json:",omitempty"`
	Boot     string    `json:",omitempty"` // hns.Stack.BootID of the last comparison
	// Category is the one that the host's network had; nil: public, or unknown.
	Category *SavedCategory `json:",omitempty"`
}

// names returns the list that holds the names of switches or of the other
// networks.
func (j *Journal) names(switches bool) *[]string {
	if switches {
		return &j.Switches
	}
	return &j.Networks
}

// Requested holds the properties of a network that HNS cannot change: if others
// are needed, the driver deletes the network and makes it again.
type Requested struct {
	Type      string
	Adapter   string // the physical adapter's name
	Subnets   []hns.Subnet
	VxlanPort uint16 `json:",omitempty"` // 0: hns.DefaultVxlanPort
}

// SavedAddress is an address of a Snapshot.
type SavedAddress struct {
	Prefix netip.Prefix
	Manual bool // set by hand; false: it comes from DHCP or a router advertisement
}

// SavedRoute is a route of a Snapshot.
type SavedRoute struct {
	Dst     netip.Prefix
	NextHop netip.Addr // unspecified: on-link
	Metric  int
}

// ReadJournal returns the zero Journal if there is no file, and after an error. Which
// errors there are, file.Unusable tells.
func ReadJournal(path string) (j Journal, err error) {
	err = file.ReadJSON(path, &j)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Journal{}, nil
	case err != nil:
		return Journal{}, fmt.Errorf("read %s: %w", path, err)
	}
	return j, nil
}

// WriteJournal replaces the file; it removes the file if the journal is empty.
func WriteJournal(path string, j Journal) error {
	if len(j.Networks)+len(j.Switches) == 0 && j.Snapshot == nil && j.LastGood == nil && j.Category == nil {
		if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	if err := file.PutJSON(path, j); err != nil {
		return fmt.Errorf("save the host's settings and the names of networks: %w", err)
	}
	return nil
}

// Owned returns the names of the networks that this or an earlier run made or
// adopted or, with switches, of those that flanneld prepare made.
func (k *Keeper) Owned(switches bool) []string {
	k.lock()
	defer k.mu.Unlock()
	return slices.Clone(*k.journal.names(switches))
}

// SetOwned adds the name of a network (of a switch, if isSwitch) to the journal,
// or removes it.
func (k *Keeper) SetOwned(name string, isSwitch, owned bool) error {
	k.lock()
	defer k.mu.Unlock()
	if slices.Contains(*k.journal.names(isSwitch), name) == owned {
		return nil
	}
	return k.update(func(j *Journal) {
		names := j.names(isSwitch)
		*names = slices.DeleteFunc(*names, func(n string) bool { return n == name })
		if owned {
			*names = append(*names, name)
		}
	})
}

// Requested returns what HNS was asked for when it made the network with this ID;
// false: not known.
func (k *Keeper) Requested(id string) (Requested, bool) {
	k.lock()
	defer k.mu.Unlock()
	r, known := k.journal.Requested[strings.ToLower(id)]
	return r, known
}

// SetRequested records what was asked for when the network with this ID was made,
// and forgets networks that are not in the list.
func (k *Keeper) SetRequested(id string, r Requested, networks []hns.Network) error {
	k.lock()
	defer k.mu.Unlock()
	id = strings.ToLower(id)
	if reflect.DeepEqual(k.journal.Requested[id], r) {
		return nil
	}
	return k.update(func(j *Journal) {
		kept := map[string]Requested{id: r}
		for _, n := range networks {
			if old, known := j.Requested[strings.ToLower(n.ID)]; known && !strings.EqualFold(n.ID, id) {
				kept[strings.ToLower(n.ID)] = old
			}
		}
		j.Requested = kept
	})
}

// update changes the journal, with k.mu held, as it is on disk now: flanneld
// prepare, in another process, may have written to it since it was read. A file that
// cannot be read stays as it is, and the caller tries again. If the file is not a
// journal of flanneld, what this Keeper has in memory counts.
func (k *Keeper) update(change func(*Journal)) error {
	if !k.begun {
		return k.readErr
	}
	next, err := ReadJournal(k.path)
	if file.Unusable(err) {
		next = k.journal
		next.Networks, next.Switches = slices.Clone(next.Networks), slices.Clone(next.Switches) // which change edits
	} else if err != nil {
		return fmt.Errorf("save the host's settings and the names of networks: %w", err)
	}
	next.compareAfterBoot(k.boot) // as begin did, which perhaps could not write
	for _, c := range append(slices.Clone(k.unwritten), change) {
		c(&next)
	}
	next.leaveOut(k.pods) // another process, such as prepare, does not know them
	if err := WriteJournal(k.path, next); err != nil {
		return err
	}
	if old := k.journal.Snapshot; old != nil && !next.holds(old) { // another process has saved one
		k.resetTimers()
	}
	k.journal, k.unwritten = next, nil
	return nil
}

// leaveOut removes the routes by a gateway into some networks from the snapshot.
func (j *Journal) leaveOut(networks []netip.Prefix) {
	if j.Snapshot != nil {
		j.Snapshot = j.Snapshot.without(networks)
	}
}

// settle is update for a change about what Restore has found or done. If the file cannot be
// written, the change is made in memory, so that Restore goes on, and WriteSettled, or an update
// before that, makes it in the file. change may be called more than once, and then with what
// another process has written in between: it must change only what Restore has seen.
func (k *Keeper) settle(change func(*Journal)) {
	err := k.update(change)
	if err == nil {
		return
	}
	change(&k.journal)
	k.journal.leaveOut(k.pods)
	k.unwritten = append(k.unwritten, change)
	k.log.Warn("cannot save what is left to restore of the host's settings, will retry", "error", err)
}

// WriteSettled writes what settle could not write; it tries once in readPause, and else returns
// the last error. The daemon calls it in each look at the host, and after RecordGood, which
// reports the error. prepare does not end before WriteSettled returns nil.
func (k *Keeper) WriteSettled() error {
	k.lock()
	defer k.mu.Unlock()
	if len(k.unwritten) == 0 {
		return nil
	}
	return k.writing.Do(func() error { return k.update(func(*Journal) {}) })
}

// holds reports whether the journal's snapshot is s, perhaps without routes to pods.
func (j *Journal) holds(s *Snapshot) bool {
	return j.Snapshot != nil && j.Snapshot.AtBoot == s.AtBoot && j.Snapshot.Written.Equal(s.Written)
}

// deleteSnapshot ends the comparison, also that after a boot: Journal.Boot is then this
// boot, and compareAfterBoot begins no other one. If this boot is unknown, Boot is "", and a
// later run compares.
func (k *Keeper) deleteSnapshot() {
	k.resetTimers() // and what else belongs to one snapshot, such as lost
	old := k.journal.Snapshot
	k.settle(func(j *Journal) {
		if j.holds(old) {
			j.Snapshot, j.Boot = nil, k.boot
		}
	})
}
