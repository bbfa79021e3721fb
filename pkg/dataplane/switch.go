package dataplane

import "net/netip"

// Prepared is the result of preparing an adapter. After an error, too, it is as of the
// last look at it.
type Prepared struct {
	Adapter   string         `json:"adapter"`   // the physical one
	Network   string         `json:"network"`   // HNS network whose switch is bound to it; "": none, or not read
	Made      bool           `json:"made"`      // the network exists, and this call made it
	Interface string         `json:"interface"` // the adapter with the host's addresses
	Addresses []netip.Prefix `json:"addresses"`
}

// SwitchNetwork is the name of the HNS network of SwitchFor. No pod has an endpoint on it.
const SwitchNetwork = "External"

// SwitchFor returns a variant of dev that only binds a switch to the adapter. Its
// name, VNI and subnet are those that the common scripts for Windows nodes use, so
// that these scripts and flanneld accept each other's network. The subnet is not
// used. A device that is not an HNS network is returned unchanged.
func SwitchFor(dev Device) Device {
	network, ok := NetworkOf(dev.Kind)
	if !ok {
		return dev
	}
	network.Switch = true
	network.Subnets = []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 168, 255, 0}), 30)}
	dev.Name = SwitchNetwork
	switch k := dev.Kind.(type) {
	case Overlay:
		k.Network, k.VNI = network, 9999
		dev.Kind = k
	case L2Bridge:
		k.Network = network
		dev.Kind = k
	}
	return dev
}
