package driver

import "flannel/pkg/reconcile"

// Verb is what becomes of a path's entries.
type Verb int

// A path is there, is there no more, or was refused.
const (
	Want Verb = iota
	Drop
	Name // the keys of its entries are asked for
)

// Filling hands the entries of paths to the tables. A kind of path says once which entries it comes to.
type Filling struct {
	Verb Verb
	Keys []any // what Name collected
}

// Put hands over one entry.
func Put[K, V comparable](f *Filling, t *reconcile.Table[K, V], key K, value V) {
	switch f.Verb {
	case Want:
		t.Want(key, value)
	case Drop:
		t.Drop(key)
	case Name:
		f.Keys = append(f.Keys, key)
	}
}
