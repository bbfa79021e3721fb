package reconcile

import (
	"hash/maphash"
	"iter"
	"math/bits"
	"slices"
)

// CompactMap maps keys to values, for the state of many peers. It takes less memory than Go's map,
// copies only its first entries when it grows, and gives memory back when entries are deleted,
// as Go's map never does. Documentation/adr/0017 compares it with Go's map and with libraries.
// The zero CompactMap is empty. It is not safe for concurrent use, and must not be copied after its
// first use.
//
// The entries are in chunks, without gaps and in no order. Growing copies the entries of the
// first chunk, until it is full, and then adds chunks. slots is a hash table with linear
// probing, of the positions of entries. Example, where the keys b and c have the same hash,
// which stands for slot 2, and that of a for slot 1:
//
//	entries  0: b  1: c  2: a
//	slots    0: 0  1: 3  2: 1  3: 2        position + 1; 0: free
//
// Delete moves the last entry into the gap, and later entries of the same run of slots
// towards the slots of their hashes, so that there are no marks of deleted entries.
type CompactMap[K comparable, V any] struct {
	length int
	chunks [][]mapEntry[K, V] // those before the last used one are full; up to one empty one follows
	slots  []uint32           // more than entries
}

type mapEntry[K comparable, V any] struct {
	value V // first, because Go pads a struct whose last field has no size
	key   K
}

// chunkSize is the number of entries for which each chunk has room. That of the first chunk
// grows up to chunkSize.
const chunkSize = 256

// mapSeed is random, so that nobody can choose keys with the same hash.
var mapSeed = maphash.MakeSeed()

// Len returns the number of entries.
func (m *CompactMap[K, V]) Len() int { return m.length }

// Get returns the value of a key; found is false, and the value zero, if there is none.
func (m *CompactMap[K, V]) Get(key K) (value V, found bool) {
	if slot, found := m.find(key); found {
		return m.in(slot).value, true
	}
	return value, false
}

// Has reports whether there is an entry with the key.
func (m *CompactMap[K, V]) Has(key K) bool {
	_, found := m.find(key)
	return found
}

// Set sets the value of a key.
func (m *CompactMap[K, V]) Set(key K, value V) {
	slot, found := m.find(key)
	if found {
		m.in(slot).value = value
		return
	}
	if m.length == room(len(m.slots)) {
		m.resize(max(6, m.length+m.length/2))
		slot, _ = m.find(key)
	}
	m.add(mapEntry[K, V]{value, key})
	m.slots[slot] = uint32(m.length)
}

// add appends an entry.
func (m *CompactMap[K, V]) add(e mapEntry[K, V]) {
	chunk := m.length / chunkSize
	if chunk == len(m.chunks) {
		m.chunks = append(m.chunks, make([]mapEntry[K, V], 0, min(room(len(m.slots)), chunkSize)))
	}
	m.chunks[chunk] = append(m.chunks[chunk], e)
	m.length++
}

// Delete deletes the entry of a key, if there is one.
func (m *CompactMap[K, V]) Delete(key K) {
	slot, found := m.find(key)
	if !found {
		return
	}
	gap, last := int(m.slots[slot]-1), m.length-1
	if gap != last {
		moved, _ := m.find(m.at(last).key)
		*m.at(gap), m.slots[moved] = *m.at(last), uint32(gap+1)
	}
	m.removeLast()
	m.free(slot)
	if m.length < room(len(m.slots))/4 {
		m.resize(m.length)
	}
}

// removeLast removes the last entry. It keeps an empty chunk until there is room for half a
// chunk in the one before, so that entries that come and go make no chunk each time.
func (m *CompactMap[K, V]) removeLast() {
	m.length--
	*m.at(m.length) = mapEntry[K, V]{}
	chunk := m.length / chunkSize
	m.chunks[chunk] = m.chunks[chunk][:m.length%chunkSize]
	if keep := (m.length + chunkSize*3/2 - 1) / chunkSize; keep < len(m.chunks) {
		m.chunks[keep] = nil
		m.chunks = m.chunks[:keep]
	}
}

// All yields all entries, in no order. The loop may delete the entry that it has got, and set
// the values of entries, and must not change the map otherwise.
func (m *CompactMap[K, V]) All() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		// Backwards: when an entry is deleted, one that was yielded before takes its place.
		for i := m.length - 1; i >= 0; i-- {
			if e := m.at(i); !yield(e.key, e.value) {
				return
			}
		}
	}
}

// Reserve makes slots for n entries in an empty CompactMap, so that adding them one by one computes
// each hash once. Otherwise it does nothing.
func (m *CompactMap[K, V]) Reserve(n int) {
	if m.length == 0 && n > room(len(m.slots)) {
		m.resize(n)
	}
}

// at returns the entry at a position.
func (m *CompactMap[K, V]) at(position int) *mapEntry[K, V] {
	return &m.chunks[position/chunkSize][position%chunkSize]
}

// in returns the entry of a slot that is not free.
func (m *CompactMap[K, V]) in(slot int) *mapEntry[K, V] { return m.at(int(m.slots[slot] - 1)) }

// room returns the number of entries for which there are enough slots. A third of them is
// free: with a quarter, replacing an entry takes half as much time again.
func room(slots int) int { return slots * 2 / 3 }

// resize makes slots for n entries, not fewer than there are. The first chunk, if there are no
// others, gets the same room, up to that of a full one.
func (m *CompactMap[K, V]) resize(n int) {
	m.slots, m.chunks = make([]uint32, n*3/2+1), slices.Clone(m.chunks) // without room for more chunks
	if len(m.chunks) == 1 {
		m.chunks[0] = append(make([]mapEntry[K, V], 0, min(n, chunkSize)), m.chunks[0]...)
	}
	for i := range m.length {
		slot := m.home(m.at(i).key)
		for m.slots[slot] != 0 {
			slot = m.after(slot)
		}
		m.slots[slot] = uint32(i + 1)
	}
}

// home returns the slot for which the hash of a key stands. There must be slots.
func (m *CompactMap[K, V]) home(key K) int {
	slot, _ := bits.Mul64(maphash.Comparable(mapSeed, key), uint64(len(m.slots)))
	return int(slot)
}

func (m *CompactMap[K, V]) after(slot int) int {
	if slot++; slot < len(m.slots) {
		return slot
	}
	return 0
}

// find returns the slot of a key, or the free one for it. Without slots, it returns 0.
func (m *CompactMap[K, V]) find(key K) (slot int, found bool) {
	if len(m.slots) == 0 {
		return 0, false
	}
	slot = m.home(key)
	for ; m.slots[slot] != 0; slot = m.after(slot) {
		if m.in(slot).key == key {
			return slot, true
		}
	}
	return slot, false
}

// free frees a slot. An entry behind it in the same run, which its own slot or one before
// the gap would have held, moves there: find ends at a free slot.
func (m *CompactMap[K, V]) free(gap int) {
	// distance is the number of steps by after.
	distance := func(from, to int) int { return (to - from + len(m.slots)) % len(m.slots) }
	for slot := m.after(gap); m.slots[slot] != 0; slot = m.after(slot) {
		home := m.home(m.in(slot).key)
		if distance(home, slot) >= distance(gap, slot) { // its home is not between the gap and its slot
			m.slots[gap], gap = m.slots[slot], slot
		}
	}
	m.slots[gap] = 0
}
