package driver

import "flannel/pkg/reconcile"

// Verb is what Put does with an entry.
type Verb int

const (
	Want Verb = iota // make it desired
	Drop             // make it not desired
	Name             // add its key to Filling.Keys
)

// Filling passes the entries of a path to tables. Each kind of path has one
// function that calls Put for every entry, whatever the verb.
type Filling struct {
	Verb Verb
	Keys []any // from Name
}

// Put wants or drops an entry, or collects its key.
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
