package dataplane

import (
	"errors"
	"maps"
	"slices"

	"flannel/pkg/reconcile"
)

// Verb is what Put does with an entry.
type Verb int

const (
	Want        Verb = iota // make it desired
	Drop                    // make it not desired
	CollectKeys             // add its key to Filling.Keys
)

// Filling passes the entries of a path to the tables of a driver. Each kind of
// path has one function that calls Put for every entry, whatever the verb.
type Filling struct {
	Verb Verb
	Keys []any // from CollectKeys
}

// Put wants or drops an entry, or collects its key.
func Put[K, V comparable](f *Filling, t *reconcile.Table[K, V], key K, value V) {
	switch f.Verb {
	case Want:
		t.Want(key, value)
	case Drop:
		t.Drop(key)
	case CollectKeys:
		f.Keys = append(f.Keys, key)
	}
}

// FillChanges makes the tables, which want the entries of the paths in current,
// want those of s. fill puts the entries of one path. The error has one error for
// each device, not one for each of ten thousand paths.
func FillChanges(current []*Path, s State, fill func(*Filling, *Path) error) error {
	added, removed := DiffPaths(current, s)
	f := &Filling{Verb: Drop}
	for _, p := range removed {
		_ = fill(f, p) // it was never wanted if it cannot be translated
	}
	f.Verb = Want
	failures := map[string]error{}
	for _, p := range added {
		if err := fill(f, p); err != nil {
			failures[p.Device] = err
		}
	}
	// Ordered, so that the same failures have the same text.
	var errs []error
	for _, device := range slices.Sorted(maps.Keys(failures)) {
		errs = append(errs, failures[device])
	}
	return errors.Join(errs...)
}
