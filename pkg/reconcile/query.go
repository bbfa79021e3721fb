package reconcile

// Wanted reports whether the key has a desired value.
func (t *Table[K, V]) Wanted(key K) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, wanted := t.desired(key)
	return wanted
}

// Desired returns the desired value of a key, if there is one.
func (t *Table[K, V]) Desired(key K) (value V, wanted bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.desired(key)
}

// desired is Desired with t.mu held.
func (t *Table[K, V]) desired(key K) (value V, wanted bool) {
	if r, ok := t.rows.Get(key); ok {
		return r.want, r.wanted
	}
	if value, wanted = t.settled.Get(key); !wanted {
		value, wanted = t.missing.Get(key)
	}
	return value, wanted
}

// Actual returns the actual value of a key, if there is one.
func (t *Table[K, V]) Actual(key K) (value V, exists bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r, ok := t.rows.Get(key); ok {
		return r.have, r.exists
	}
	return t.settled.Get(key)
}

// AllActual returns all actual entries, in no order.
func (t *Table[K, V]) AllActual() []Entry[K, V] {
	t.mu.Lock()
	defer t.mu.Unlock()
	var entries []Entry[K, V]
	for key, value := range t.settled.All() {
		entries = append(entries, Entry[K, V]{value, key})
	}
	for _, r := range t.rows.All() {
		if r.exists {
			entries = append(entries, Entry[K, V]{r.have, r.key})
		}
	}
	return entries
}

// Len returns the number of desired entries.
func (t *Table[K, V]) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.wanted
}

// knows reports whether an entry is desired or exists.
func (t *Table[K, V]) knows(key K) bool {
	return t.settled.Has(key) || t.missing.Has(key) || t.rows.Has(key)
}
