package reconcile

import "fmt"

// row is what the table knows about a key whose entry is not settled: what is desired and
// what exists differ, or did so when the last pass began.
type row[K, V comparable] struct {
	key            K
	want, have     V    // desired and actual value; zero if not wanted, or absent
	wanted, exists bool // there is a desired, an actual value
	dirty          bool // it is in Table.dirty; only dueEntries may remove it from there
	listed         bool // the list that is being processed contains it
	// settled: the actual value was the desired one. If it is not any more, somebody
	// else has changed it.
	settled bool
	// stray: it appeared after the first list, and was never desired: somebody else has
	// added it.
	stray    bool
	replaces bool // the write that was begun last replaces another actual value
	// observedIn is the call (Table.call) during which the last notification for
	// this key arrived. A notification is newer than the result of that call.
	observedIn int
}

// agrees reports whether the actual value is the desired one.
func (r *row[K, V]) agrees() bool { return r.wanted == r.exists && r.want == r.have }

// setHave sets the actual value, or (exists false) that there is none.
func (r *row[K, V]) setHave(value V, exists bool) {
	if !exists {
		value = *new(V)
	}
	r.have, r.exists = value, exists
	if r.wanted && r.agrees() {
		r.settled = true
	}
}

// setWant sets the desired value, or (wanted false) that there is none.
func (r *row[K, V]) setWant(value V, wanted bool) {
	r.want, r.wanted = value, wanted
	r.settled, r.stray = wanted && r.agrees(), false
}

// repaired reports whether a write of the row, which does not agree, undoes what
// somebody else has done.
func (r *row[K, V]) repaired() bool { return r.settled || r.stray }

// deviation describes what somebody else has done.
func (r *row[K, V]) deviation() string {
	switch {
	case !r.wanted:
		return fmt.Sprintf("%v was added", r.key)
	case !r.exists:
		return fmt.Sprintf("%v was deleted", r.key)
	}
	return fmt.Sprintf("%v was changed to %v", r.key, r.have)
}
