package api

import (
	"net/netip"
	"slices"

	"flannel/pkg/windows/hns"
)

// Network is the decoded document of a network.
type Network struct {
	Name, Type    string
	Document      Document // the whole document, of version 2
	Subnets       []Subnet
	Policies      []hns.Policy
	NonPersistent bool
}

// Subnet is a subnet of a network.
type Subnet struct {
	Prefix  netip.Prefix
	Gateway netip.Addr
	VSID    uint32 // of an overlay
}

// networkDocument has the fields that we read.
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

const nonPersistent = 8 // bit in the flags of a network

// External reports whether networks of a type need a physical adapter.
func External(kind string) bool {
	return slices.Contains([]string{hns.Overlay, hns.L2Bridge, "L2Tunnel", "Transparent"}, kind)
}
