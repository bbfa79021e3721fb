package api

import (
	"net/netip"
	"slices"

	"flannel/pkg/hns"
)

// Network is what a document asks for.
type Network struct {
	Name, Type    string
	Document      Document // all of it, of version 2
	Subnets       []Subnet
	Policies      []hns.Policy
	NonPersistent bool
}

// Subnet is one of a network.
type Subnet struct {
	Prefix  netip.Prefix
	Gateway netip.Addr
	VSID    uint32
}

// networkDocument is what we read of a network's document.
type networkDocument struct {
	Name, Type string
	Policies   []hns.Policy
	Ipams      []struct {
		Type    string
		Subnets []subnetDocument
	}
	Flags         uint32
	SchemaVersion struct{ Major, Minor int }
}

type subnetDocument struct {
	IpAddressPrefix string
	Policies        []hns.Policy
	Routes          []struct {
		NextHop           string
		DestinationPrefix string
	}
}

const nonPersistent = 8 // of a network's flags

// External reports whether networks of a type take an adapter of the machine.
func External(kind string) bool {
	return slices.Contains([]string{hns.Overlay, hns.L2Bridge, "L2Tunnel", "Transparent"}, kind)
}
