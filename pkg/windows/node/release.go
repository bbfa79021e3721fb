// This file removes what VIPKeeper (sourcevip.go) and the bridge (bridge.go) have made,
// for the command cleanup.

package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"flannel/pkg/windows/hns"
)

// Release deletes the endpoints of the source VIP, the reservations and the file. After
// an error it goes on with the rest. It returns a description of each object that it
// deleted, or with dryRun would delete.
func (k VIPKeeper) Release(ctx context.Context, dryRun bool) (removed []string, err error) {
	published, err := ReadVIP(k.File) // zero after an error
	ids, endpointsErr := k.endpoints(ctx)
	errs := []error{err, endpointsErr}
	for _, id := range ids {
		removed = append(removed, "HNS endpoint "+endpointName+" ("+id+")")
		if dryRun {
			continue
		}
		if err := k.Client.DeleteEndpoint(ctx, id); err != nil && !errors.Is(err, hns.ErrNotFound) {
			errs = append(errs, err)
		}
	}
	stores, storesErr := k.stores(published)
	errs = append(errs, storesErr)
	for _, s := range stores {
		released, err := releaseAll(ctx, s, dryRun)
		errs, removed = append(errs, err), append(removed, released...)
	}
	if _, err := os.Stat(k.File); errors.Is(err, fs.ErrNotExist) {
		return removed, errors.Join(errs...)
	}
	removed = append(removed, "file "+k.File)
	if !dryRun && errors.Join(errs...) == nil { // after an error, the next Release needs to read it
		errs = append(errs, os.Remove(k.File))
	}
	return removed, errors.Join(errs...)
}

// endpoints returns the IDs of our endpoints on all overlays.
func (k VIPKeeper) endpoints(ctx context.Context) (ids []string, err error) {
	networks, err := k.Client.Networks(ctx)
	if err != nil {
		return nil, err
	}
	named, err := k.Client.EndpointsNamed(ctx, endpointName)
	for _, e := range named {
		if slices.ContainsFunc(networks, func(n hns.Network) bool { return n.Type == hns.Overlay && strings.EqualFold(n.ID, e.Network) }) {
			ids = append(ids, e.ID)
		}
	}
	return ids, err
}

// stores returns the directories that may have reservations of ours, each once: all that
// exist in DataDir, since we may have crashed before publishing, and the published one if
// it is somewhere else. The published directory may be another name of one in DataDir.
func (k VIPKeeper) stores(published VIP) (stores []hostLocal, err error) {
	entries, err := os.ReadDir(k.DataDir)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // nothing was reserved there
	} else if err != nil {
		err = fmt.Errorf("list host-local's networks: %w", err)
	}
	for _, e := range entries {
		if e.IsDir() {
			stores = append(stores, hostLocal(filepath.Join(k.DataDir, e.Name())))
		}
	}
	isPublished := func(s hostLocal) bool {
		isOther, err := otherDir(published.Store, string(s))
		return err == nil && !isOther
	}
	if published.Store != "" && !slices.ContainsFunc(stores, isPublished) {
		stores = append(stores, hostLocal(published.Store))
	}
	return stores, err
}

// releaseAll deletes our reservations in a directory and returns a description of each.
// With dryRun it deletes nothing.
func releaseAll(ctx context.Context, s hostLocal, dryRun bool) (released []string, err error) {
	ours, _, err := s.list()
	if err != nil || len(ours) == 0 {
		return nil, err
	}
	if !dryRun { // list again with the lock, which creates the directory: so not before something is ours
		unlock, lockErr := s.lock(ctx)
		if lockErr != nil {
			return nil, lockErr
		}
		defer func() { err = errors.Join(err, unlock()) }()
		if ours, _, err = s.list(); err != nil {
			return nil, err
		}
	}
	var errs []error
	for _, a := range ours {
		if !dryRun {
			if err := s.release(a); err != nil {
				errs = append(errs, err)
				continue
			}
		}
		released = append(released, fmt.Sprintf("reservation of %s in %s", a, string(s)))
	}
	return released, errors.Join(errs...)
}
