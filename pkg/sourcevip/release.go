package sourcevip

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"flannel/pkg/hns"
)

// Release ends all: the endpoints, the reservations and the file. It returns what it removed, as text for a person.
func (k Keeper) Release(ctx context.Context) (removed []string, err error) {
	return k.release(ctx, false)
}

// Remains tells what Release would remove.
func (k Keeper) Remains(ctx context.Context) ([]string, error) { return k.release(ctx, true) }

func (k Keeper) release(ctx context.Context, dryRun bool) (removed []string, err error) {
	published, err := Read(k.File)
	errs := []error{err}
	ids, err := k.endpoints(ctx)
	errs = append(errs, err)
	for _, id := range ids {
		removed = append(removed, "HNS endpoint "+endpointName+" ("+id+")")
		if dryRun {
			continue
		}
		if err := k.Client.DeleteEndpoint(ctx, id); err != nil && !errors.Is(err, hns.ErrNotFound) {
			errs = append(errs, err)
		}
	}
	for _, s := range k.stores(published) {
		free := k.free
		if dryRun {
			free = k.reserved
		}
		freed, err := free(ctx, s)
		errs, removed = append(errs, err), append(removed, freed...)
	}
	if _, err := os.Stat(k.File); errors.Is(err, fs.ErrNotExist) {
		return removed, errors.Join(errs...)
	}
	removed = append(removed, "file "+k.File)
	if !dryRun && errors.Join(errs...) == nil { // else it still says where to look
		errs = append(errs, os.Remove(k.File))
	}
	return removed, errors.Join(errs...)
}

// endpoints are the IDs of ours, on any network.
func (k Keeper) endpoints(ctx context.Context) (ids []string, err error) {
	networks, err := k.Client.Networks(ctx)
	errs := []error{err}
	for _, n := range networks {
		if n.Type != hns.Overlay {
			continue
		}
		all, err := k.Client.Endpoints(ctx, n.ID)
		errs = append(errs, err)
		for _, e := range all {
			if e.Name == endpointName {
				ids = append(ids, e.ID)
			}
		}
	}
	return ids, errors.Join(errs...)
}

// stores are the directories in which we may have reserved something: a crash may have come before publishing.
func (k Keeper) stores(published VIP) []store {
	all := map[string]bool{}
	if published.Store != "" {
		all[published.Store] = true
	}
	entries, _ := os.ReadDir(k.DataDir) // without one, nothing was reserved there
	for _, e := range entries {
		if e.IsDir() {
			all[filepath.Join(k.DataDir, e.Name())] = true
		}
	}
	var stores []store
	for _, dir := range slices.Sorted(maps.Keys(all)) {
		stores = append(stores, store(dir))
	}
	return stores
}

// reserved are our reservations, as text.
func (k Keeper) reserved(_ context.Context, s store) (all []string, err error) {
	ours, _, err := s.list()
	for _, a := range ours {
		all = append(all, fmt.Sprintf("reservation of %s in %s", a, string(s)))
	}
	return all, err
}

// free ends our reservations.
func (k Keeper) free(ctx context.Context, s store) (freed []string, err error) {
	if ours, _, err := s.list(); err != nil || len(ours) == 0 {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, lockWithin)
	defer cancel()
	unlock, err := s.lock(ctx)
	if err != nil {
		return nil, err
	}
	ours, _, err := s.list()
	errs := []error{err}
	for _, a := range ours {
		if err := s.release(a); err != nil {
			errs = append(errs, err)
			continue
		}
		freed = append(freed, fmt.Sprintf("reservation of %s in %s", a, string(s)))
	}
	return freed, errors.Join(append(errs, unlock())...)
}
