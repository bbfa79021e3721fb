package hnstest

import (
	"net/netip"

	"flannel/pkg/dataplane"
	"flannel/pkg/windows/hns"
)

// Body carries out the changes of a Machine somewhere, such as in a network
// namespace. The Machine holds the state, and calls the Body, with itself
// locked, after each change. An add that is false means to remove.
type Body interface {
	// Add creates an adapter and returns its index. If parent is not 0, the
	// adapter is the virtual one of a switch with the physical adapter parent
	// as its uplink.
	Add(a hns.Adapter, parent int) (index int, err error)
	Remove(index int) error
	Rename(index int, name string) error
	Address(index int, p netip.Prefix, add bool) error
	Route(r hns.Route, add bool) error
	Forwarding(index int, v6, on bool) error
	// Cut ends the TCP connections from an address.
	Cut(netip.Addr) error

	// Overlay creates or deletes an overlay network. Remote and Pod add routes
	// to remote subnets and local pods to a network.
	Overlay(o Overlay, add bool) error
	Remote(network string, r hns.RemoteSubnet, add bool) error
	Pod(network string, addr netip.Addr, add bool) error
	Close() error
}

// Overlay describes an overlay network to a Body. To delete one, only Network
// is set.
type Overlay struct {
	Network string // its ID
	VSID    uint32
	Port    uint16
	MAC     dataplane.MAC
	Local   netip.Addr // on the underlay
	MTU     int        // of packets in the overlay, in bytes
}

// inMemory is the Body of a machine that exists only in memory. It chooses
// indexes and does nothing else.
type inMemory struct{ last int }

func (n *inMemory) Add(hns.Adapter, int) (int, error) {
	n.last += 7 // indexes have gaps, and are not reused
	return n.last, nil
}

func (*inMemory) Remove(int) error                            { return nil }
func (*inMemory) Rename(int, string) error                    { return nil }
func (*inMemory) Address(int, netip.Prefix, bool) error       { return nil }
func (*inMemory) Route(hns.Route, bool) error                 { return nil }
func (*inMemory) Forwarding(int, bool, bool) error            { return nil }
func (*inMemory) Cut(netip.Addr) error                        { return nil }
func (*inMemory) Overlay(Overlay, bool) error                 { return nil }
func (*inMemory) Remote(string, hns.RemoteSubnet, bool) error { return nil }
func (*inMemory) Pod(string, netip.Addr, bool) error          { return nil }
func (*inMemory) Close() error                                { return nil }
