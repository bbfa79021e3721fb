package udptunnel

import (
	"cmp"
	"encoding/binary"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
)

// Peers says which peer has which subnet. The driver's table sets it (datagramStore in package linux), the two
// goroutines of each Tunnel read it, without locks: a change replaces the whole table. The zero Peers has none. It is
// safe for concurrent use.
type Peers struct {
	mu    sync.Mutex                      // of all, and for writers of table
	all   map[netip.Prefix]netip.AddrPort // the same as table, for All
	table atomic.Pointer[table]           // for the lookups of packets; nil: empty
}

// Set adds and replaces subnets (IPv4, masked) with the peers' addresses
// (IPv4) and ports on the underlay. The cost is linear in the number of peers, so
// that changes should be passed together.
func (p *Peers) Set(changed map[netip.Prefix]netip.AddrPort) {
	p.mu.Lock()
	defer p.mu.Unlock()
	entries := make([]entry, 0, len(changed))
	for subnet, via := range changed {
		entries = append(entries, newEntry(subnet, via))
	}
	if p.all == nil {
		p.all = map[netip.Prefix]netip.AddrPort{}
	}
	maps.Copy(p.all, changed)
	p.table.Store(p.table.Load().merge(entries))
}

// Delete removes subnets. It ignores those that are not there.
func (p *Peers) Delete(subnets []netip.Prefix) {
	p.mu.Lock()
	defer p.mu.Unlock()
	entries := make([]entry, 0, len(subnets))
	for _, subnet := range subnets {
		delete(p.all, subnet)
		entries = append(entries, newEntry(subnet, netip.AddrPort{}))
	}
	p.table.Store(p.table.Load().merge(entries))
}

// All returns a copy of the subnets and their peers' addresses.
func (p *Peers) All() map[netip.Prefix]netip.AddrPort {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.all)
}

// entry is a subnet with its peer. Addresses are numbers, which compare faster.
type entry struct {
	first, last uint32 // of the subnet
	via         uint32
	port        uint16
	addr        *net.UDPAddr // via and port; nil in a change: delete the subnet
}

// newEntry returns the entry of a subnet. A via that is not valid makes it a change that deletes the subnet.
func newEntry(subnet netip.Prefix, via netip.AddrPort) entry {
	first := number(subnet.Addr())
	e := entry{first: first, last: first | uint32(1<<(32-subnet.Bits())-1)}
	if via.IsValid() {
		e.via, e.port, e.addr = number(via.Addr()), via.Port(), net.UDPAddrFromAddrPort(via)
	}
	return e
}

// number returns an IPv4 address as a number.
func number(a netip.Addr) uint32 {
	b := a.As4()
	return binary.BigEndian.Uint32(b[:])
}

// contains reports whether an address is in the subnet.
func (e *entry) contains(a uint32) bool { return e.first <= a && a <= e.last }

// compare orders by first address; a subnet comes before those that it contains. Two are equal if
// they are the same subnet, whatever their peers.
func (e *entry) compare(o *entry) int {
	return cmp.Or(cmp.Compare(e.first, o.first), cmp.Compare(o.last, e.last))
}

// table is an immutable table of subnets in the order of entry.compare.
type table struct {
	entries []entry
	nested  bool // a subnet contains another one, as while a node changes its subnet
}

// merge returns a new table with changes applied; t stays as it is. t may be nil: empty.
// Both lists are sorted, so that one step through them is enough.
func (t *table) merge(changed []entry) *table {
	if t == nil {
		t = &table{}
	}
	slices.SortFunc(changed, func(a, b entry) int { return a.compare(&b) })
	next := &table{entries: make([]entry, 0, len(t.entries)+len(changed))}
	add := func(e entry) { // called in the order of the table
		if n := len(next.entries); n > 0 && next.entries[n-1].last >= e.first {
			next.nested = true
		}
		next.entries = append(next.entries, e)
	}
	old := t.entries
	for _, e := range changed {
		for len(old) > 0 && old[0].compare(&e) < 0 {
			add(old[0])
			old = old[1:]
		}
		if len(old) > 0 && old[0].compare(&e) == 0 { // the same subnet
			old = old[1:]
		}
		if e.addr != nil { // nil: deleted
			add(e)
		}
	}
	for _, e := range old {
		add(e)
	}
	return next
}

// find returns the smallest subnet that contains an address; nil: there is none.
func (t *table) find(a uint32) *entry {
	if t == nil {
		return nil
	}
	// i is the index of the first entry that begins at a or behind it; those that contain a begin at a or before it.
	i, exact := slices.BinarySearchFunc(t.entries, a, func(e entry, a uint32) int { return cmp.Compare(e.first, a) })
	if exact { // of several with this first address, the smallest is the last one
		for i+1 < len(t.entries) && t.entries[i+1].first == a {
			i++
		}
		i++
	}
	for i--; i >= 0; i-- {
		if e := &t.entries[i]; e.contains(a) {
			return e
		}
		if !t.nested { // only the entry before i can contain a
			return nil
		}
	}
	return nil
}

// finder finds the peers of packets. It remembers the last one, because most packets are of the same peer as the one
// before. It is for one goroutine, that of a sender or a receiver, which calls refresh before each batch of packets.
type finder struct {
	peers *Peers
	table *table // as of the last refresh; nil: there are no peers
	last  *entry // of table, that the last call of find has found; nil: none
}

// refresh makes the following calls of find use the latest table.
func (f *finder) refresh() {
	if t := f.peers.table.Load(); t != f.table {
		f.table, f.last = t, nil
	}
}

// find returns the entry with the smallest subnet that contains an address; nil: there is none. It tries the last one
// first, unless subnets are nested: then a smaller one may contain the address, too.
func (f *finder) find(a uint32) *entry {
	if f.last != nil && f.last.contains(a) && !f.table.nested {
		return f.last
	}
	if e := f.table.find(a); e != nil {
		f.last = e
		return e
	}
	return nil
}
