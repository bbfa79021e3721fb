package hnstest

import (
	"net/netip"

	"flannel/pkg/hns"
	"flannel/pkg/mac"
)

// Body is what a machine is made of. The Machine knows what is there; the body follows.
type Body interface {
	// Add makes an adapter and returns its index. A switch takes the physical adapter (the index parent) as its uplink.
	Add(a hns.Adapter, parent int) (index int, err error)
	Remove(index int) error
	Rename(index int, name string) error
	Address(index int, p netip.Prefix, add bool) error
	Route(r hns.Route, add bool) error
	Forwarding(index int, v6, on bool) error
	// Cut ends the TCP connections that come from an address.
	Cut(netip.Addr) error

	// Overlay gives an Overlay network what carries its packets; Remote and Pod say what it carries where.
	Overlay(o Overlay, add bool) error
	Remote(network string, r hns.RemoteSubnet, add bool) error
	Pod(network string, addr netip.Addr, add bool) error
	Close() error
}

// Overlay is an Overlay network for the body.
type Overlay struct {
	Network string // its ID
	VSID    uint32
	Port    uint16
	MAC     mac.Addr
	Local   netip.Addr // of the underlay
	MTU     int        // bytes, of the packets within
}

// nobody is the body of a machine in memory.
type nobody struct{ last int }

func (n *nobody) Add(hns.Adapter, int) (int, error) {
	n.last += 7 // indexes have gaps, and never come again
	return n.last, nil
}

func (*nobody) Remove(int) error                            { return nil }
func (*nobody) Rename(int, string) error                    { return nil }
func (*nobody) Address(int, netip.Prefix, bool) error       { return nil }
func (*nobody) Route(hns.Route, bool) error                 { return nil }
func (*nobody) Forwarding(int, bool, bool) error            { return nil }
func (*nobody) Cut(netip.Addr) error                        { return nil }
func (*nobody) Overlay(Overlay, bool) error                 { return nil }
func (*nobody) Remote(string, hns.RemoteSubnet, bool) error { return nil }
func (*nobody) Pod(string, netip.Addr, bool) error          { return nil }
func (*nobody) Close() error                                { return nil }
