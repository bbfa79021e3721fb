package hnstest

import (
	"net/netip"

	"flannel/pkg/hns"
)

// body is what a machine is made of. The Machine knows what is there; the body follows.
type body interface {
	// add makes an adapter and returns its index. A switch takes the physical adapter (the index parent) as its uplink.
	add(a hns.Adapter, parent int) (index int, err error)
	remove(index int) error
	rename(index int, name string) error
	address(index int, p netip.Prefix, add bool) error
	route(r hns.Route, add bool) error
	forwarding(index int, v6, on bool) error
	// cut ends the TCP connections that come from an address.
	cut(netip.Addr) error

	// overlay gives an Overlay network what carries its packets; remote and pod say what it carries where.
	overlay(o overlay, add bool) error
	remote(network string, r hns.RemoteSubnet, add bool) error
	pod(network string, addr netip.Addr, add bool) error
	close() error
}

// overlay is an Overlay network for the body.
type overlay struct {
	network string // its ID
	vsid    uint32
	port    uint16
	mac     hns.MAC
	local   netip.Addr // of the underlay
	mtu     int        // bytes, of the packets within
}

// nobody is the body of a machine in memory.
type nobody struct{ last int }

func (n *nobody) add(hns.Adapter, int) (int, error) {
	n.last += 7 // indexes have gaps, and never come again
	return n.last, nil
}

func (*nobody) remove(int) error                            { return nil }
func (*nobody) rename(int, string) error                    { return nil }
func (*nobody) address(int, netip.Prefix, bool) error       { return nil }
func (*nobody) route(hns.Route, bool) error                 { return nil }
func (*nobody) forwarding(int, bool, bool) error            { return nil }
func (*nobody) cut(netip.Addr) error                        { return nil }
func (*nobody) overlay(overlay, bool) error                 { return nil }
func (*nobody) remote(string, hns.RemoteSubnet, bool) error { return nil }
func (*nobody) pod(string, netip.Addr, bool) error          { return nil }
func (*nobody) close() error                                { return nil }
