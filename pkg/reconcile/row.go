package reconcile

import (
	"fmt"
	"slices"
)

// row is what a Table knows about a key whose entry is not settled (see the table there):
// what is desired and what exists differ, or did so when the last pass began.
type row[K, V comparable] struct {
	key            K
	want, have     V    // desired and actual value; zero if not wanted, or absent
	wanted, exists bool // there is a desired, an actual value
	dirty          bool // it is in Table.dirty; only removeAgreeing may remove it from there
	listed         bool // the list that is being processed contains it
	// agreed: the actual value has been the present desired one. If it is not any more,
	// somebody else has changed it. It is reset if the actual value has lapsed (Table.Lapsed).
	agreed bool
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
		r.agreed = true
	}
}

// setWant sets the desired value, or (wanted false) that there is none.
func (r *row[K, V]) setWant(value V, wanted bool) {
	r.want, r.wanted = value, wanted
	r.agreed, r.stray = wanted && r.agrees(), false
}

// repaired reports whether a write of the row, which does not agree, undoes what
// somebody else has done.
func (r *row[K, V]) repaired() bool { return r.agreed || r.stray }

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

// row returns the row of a key. It makes one of a settled or a missing entry, or of none. The
// methods of Table in this file are called with t.mu held.
func (t *Table[K, V]) row(key K) *row[K, V] {
	if r, ok := t.rows.Get(key); ok {
		return r
	}
	r := &row[K, V]{key: key, observedIn: -1} // no notification yet
	if value, ok := t.settled.Get(key); ok {
		r.want, r.have, r.wanted, r.exists, r.agreed = value, value, true, true, true
		t.settled.Delete(key)
	} else if value, ok := t.missing.Get(key); ok {
		r.setWant(value, true)
		t.missing.Delete(key)
	} else {
		r.stray = t.listed
	}
	t.rows.Set(key, r)
	return r
}

// drop removes the desired value of a row, if it has one.
func (t *Table[K, V]) drop(r *row[K, V]) {
	if r.wanted {
		t.wanted--
	}
	r.setWant(*new(V), false)
	t.update(r)
}

// update adds a changed row to dirty, or removes it if it agrees.
func (t *Table[K, V]) update(r *row[K, V]) {
	switch {
	case r.dirty:
	case !r.agrees():
		r.dirty = true
		t.dirty = append(t.dirty, r)
	case !t.listing: // the list, which may be older, is compared with the row
		t.remove(r)
	}
}

// remove removes a row that agrees: the entry is settled, or there is none.
func (t *Table[K, V]) remove(r *row[K, V]) {
	if r.wanted {
		t.settled.Set(r.key, r.want)
	}
	t.rows.Delete(r.key)
}

// removeAgreeing removes the dirty rows that agree by now.
func (t *Table[K, V]) removeAgreeing() {
	t.dirty = slices.DeleteFunc(t.dirty, func(r *row[K, V]) bool {
		if r.dirty = !r.agrees(); !r.dirty {
			t.remove(r)
		}
		return !r.dirty
	})
	if len(t.dirty) == 0 { // it keeps the memory of the most rows that it had
		t.dirty = nil
	}
}

// settleMissing records that missing entries exist, with the values that were just set.
// An entry that became missing, or whose desired value changed, during the write stays
// missing. Those that were refused have rows by now.
func (t *Table[K, V]) settleMissing(set []Entry[K, V]) {
	n := 0
	for _, e := range set {
		if value, ok := t.missing.Get(e.Key); ok && value == e.Value {
			n++
		}
	}
	if n == t.missing.Len() && t.settled.Len() == 0 { // as at a start: without a second map
		t.settled, t.missing = t.missing, t.settled
		return
	}
	for _, e := range set {
		if value, ok := t.missing.Get(e.Key); ok && value == e.Value {
			t.settled.Set(e.Key, value)
			t.missing.Delete(e.Key)
		}
	}
}
