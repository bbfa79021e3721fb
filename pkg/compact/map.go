// Package compact has a map for the state of many peers. It takes about half of the memory
// of Go's map, and gives memory back when entries are deleted, as Go's map never does.
package compact

import (
	"hash/maphash"
	"iter"
)

// Map maps keys to values. The zero Map is empty. It is not safe for concurrent use, and
// must not be copied after its first use.
//
// The entries are in one slice, without gaps and in no order. slots is a hash table with
// linear probing of their positions. Example, where the keys b and c have the same hash,
// 2, and a has 1:
//
//	entries  0: b  1: c  2: a
//	slots    0: 0  1: 3  2: 1  3: 2        position + 1; 0: free
//
// Delete moves the last entry into the gap, and later entries of the same run of slots
// towards the slots of their hashes, so that there are no marks of deleted entries.
type Map[K comparable, V any] struct {
	entries []entry[K, V]
	slots   []uint32 // a power of two of them, more than entries
}

type entry[K comparable, V any] struct {
	value V // first, because Go pads a struct whose last field has no size
	key   K
}

// seed is random, so that nobody can choose keys with the same hash.
var seed = maphash.MakeSeed()

// Len returns the number of entries.
func (m *Map[K, V]) Len() int { return len(m.entries) }

// Get returns the value of a key; found is false, and the value zero, if there is none.
func (m *Map[K, V]) Get(key K) (value V, found bool) {
	if at, found := m.find(key); found {
		return m.entries[m.slots[at]-1].value, true
	}
	return value, false
}

// Has reports whether there is an entry with the key.
func (m *Map[K, V]) Has(key K) bool {
	_, found := m.find(key)
	return found
}

// Set sets the value of a key.
func (m *Map[K, V]) Set(key K, value V) {
	at, found := m.find(key)
	if found {
		m.entries[m.slots[at]-1].value = value
		return
	}
	if len(m.entries) == room(len(m.slots)) {
		m.resize(max(8, 2*len(m.entries)), cap(m.entries))
		at, _ = m.find(key)
	}
	m.entries = append(m.entries, entry[K, V]{value, key})
	m.slots[at] = uint32(len(m.entries))
}

// Delete deletes the entry of a key, if there is one.
func (m *Map[K, V]) Delete(key K) {
	at, found := m.find(key)
	if !found {
		return
	}
	gap, last := m.slots[at]-1, len(m.entries)-1
	if int(gap) != last {
		moved, _ := m.find(m.entries[last].key)
		m.entries[gap], m.slots[moved] = m.entries[last], gap+1
	}
	m.entries[last] = entry[K, V]{}
	m.entries = m.entries[:last]
	m.free(at)
	if last < cap(m.entries)/4 {
		m.resize(last, last)
	}
}

// All yields all entries, in no order. The loop may delete the entry that it has got, and set
// the values of entries, and must not change the Map otherwise.
func (m *Map[K, V]) All() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		// Backwards: when an entry is deleted, one that was yielded before takes its place.
		for i := len(m.entries) - 1; i >= 0; i-- {
			if !yield(m.entries[i].key, m.entries[i].value) {
				return
			}
		}
	}
}

// Reserve makes room for n entries in an empty Map, so that adding them one by one copies
// none. Otherwise it does nothing.
func (m *Map[K, V]) Reserve(n int) {
	if len(m.entries) == 0 && n > cap(m.entries) {
		m.resize(n, n)
	}
}

// room returns the number of entries for which there are enough slots.
func room(slots int) int { return slots / 4 * 3 }

// resize makes slots for n entries, and a slice of entries with that capacity.
func (m *Map[K, V]) resize(n, capacity int) {
	size := 4
	for room(size) < n {
		size *= 2
	}
	m.slots = make([]uint32, size)
	if capacity != cap(m.entries) {
		m.entries = append(make([]entry[K, V], 0, capacity), m.entries...)
	}
	for i, e := range m.entries {
		at := m.home(e.key)
		for m.slots[at] != 0 {
			at = m.after(at)
		}
		m.slots[at] = uint32(i + 1)
	}
}

// home returns the slot of the hash of a key. There must be slots.
func (m *Map[K, V]) home(key K) int {
	return int(maphash.Comparable(seed, key) & uint64(len(m.slots)-1))
}

func (m *Map[K, V]) after(slot int) int { return (slot + 1) & (len(m.slots) - 1) }

// find returns the slot of a key, or the free one for it. Without slots, it returns 0.
func (m *Map[K, V]) find(key K) (slot int, found bool) {
	if len(m.slots) == 0 {
		return 0, false
	}
	at := m.home(key)
	for ; m.slots[at] != 0; at = m.after(at) {
		if m.entries[m.slots[at]-1].key == key {
			return at, true
		}
	}
	return at, false
}

// free frees a slot. An entry behind it in the same run, which its own slot or one before
// the gap would have held, moves there: find ends at a free slot.
func (m *Map[K, V]) free(gap int) {
	mask := len(m.slots) - 1
	for at := m.after(gap); m.slots[at] != 0; at = m.after(at) {
		home := m.home(m.entries[m.slots[at]-1].key)
		if (at-home)&mask >= (at-gap)&mask { // its home is not between the gap and its slot
			m.slots[gap], gap = m.slots[at], at
		}
	}
	m.slots[gap] = 0
}
