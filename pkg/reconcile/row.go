package reconcile

// row is what is known of one key. There are many, looked at often: one look-up finds all of it.
type row[K, V comparable] struct {
	key           K
	want, have    V    // zero if not wanted, not there
	wanted, there bool // the entry shall be, and is, there
	dirty         bool // it is in Table.dirty, and only who takes it out of there may forget it
	listed        bool // the list that is being taken in has it
	// seen is the last call of the store during which a notification told of this key: that is newer than what the
	// call returns.
	seen int
}

func (r *row[K, V]) agrees() bool { return r.wanted == r.there && r.want == r.have }
func (r *row[K, V]) empty() bool  { return !r.wanted && !r.there }

func (r *row[K, V]) is(value V, there bool) {
	if !there {
		value = *new(V)
	}
	r.have, r.there = value, there
}
