package dataplane

import "net/netip"

// Prepared says how the adapter stands.
type Prepared struct {
	Adapter   string         `json:"adapter"`   // the physical one
	Network   string         `json:"network"`   // an HNS network that holds its switch
	Made      bool           `json:"made"`      // by this call
	Interface string         `json:"interface"` // the one with the host's addresses
	Addresses []netip.Prefix `json:"addresses"`
}

// SwitchFor is dev as a network that only holds the switch: with a name, a number and a subnet that the usual scripts
// for Windows nodes have given theirs for years, so that both take the other's for their own. Nothing is ever there.
func SwitchFor(dev Device) Device {
	network, ok := dev.Kind.(HNS)
	if !ok {
		return dev
	}
	common := network.Common()
	common.Switch = true
	common.Subnets = []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 168, 255, 0}), 30)}
	dev.Name, dev.Kind = "External", network.with(common)
	if o, ok := dev.Kind.(Overlay); ok {
		o.VNI = 9999
		dev.Kind = o
	}
	return dev
}
