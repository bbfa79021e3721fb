package dataplane

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"
)

// Traits describe a kind of device to code outside of its driver: to the backends, the guard, the doctor, and the tests
// of paths (pkg/probe/path). The rows of this table are the methods traits in kinds.go. A row has the port and the VNI
// of one device if the Kind has them, and otherwise the defaults.
type Traits struct {
	Kind    string   // name for messages
	Backend string   // whose tunnels these are on Linux; "": the kind is no tunnel, or is one of Windows
	Links   []string // types of link of the tunnel devices, in the netlink library; nil: the kind has no tunnel devices
	// Name matches the names that flannel gives the tunnel devices, whatever their type of link; nil: as for Links. A group
	// in it is the port of the device, or 0 if the port is the default.
	Name   *regexp.Regexp
	MTUKey bool // the configuration of the backend has the key MTU

	// The following fields describe the packets between the nodes, each of which contains the packet of a pod. They are zero
	// if Protocol is 0: then packets of pods are sent as they are, or nothing is known of the packets between the nodes.

	Protocol  uint8  // of the outer IP header
	Port      uint16 // destination of UDP datagrams; 0: the protocol has no ports, or each device has a port of its own
	VNI       uint32 // in the header of VXLAN; 0: any, or there is no such header
	Header    int    // bytes between the outer IP header and that of the pod's packet
	Trailer   int    // bytes behind the pod's packet
	Frame     bool   // the pod's packet is in an Ethernet frame, the last part of Header
	Keys      bool   // a device sends nothing before it and the peer have agreed on keys, which tell who the sender is
	AnyFamily bool   // a device sends by IPv4 and by IPv6
}

// Protocols of IP.
const (
	protocolIPIP = 4
	protocolUDP  = 17
	protocolESP  = 50
)

// Lengths of headers, in bytes.
const (
	ethernet = 14
	ipv4     = 20
	ipv6     = 40 // without extensions
	udp      = 8
	vxlan    = 8
	// Of WireGuard's data packets: type and reserved bytes, receiver, counter; tag.
	wireGuardHeader = 4 + 4 + 8
	wireGuardTag    = 16
	// Of ESP (RFC 4303), which IPsec uses, with AES-CBC and SHA-256. The default, AES-GCM, needs
	// less. An IPsec.Proposal with a longer checksum, such as that of SHA-512, needs more. The
	// trailer is up to 15 bytes of padding, 2, and the checksum.
	espHeader  = 8 + 16 // 16 is the initialization vector
	espTrailer = 15 + 2 + 16
)

// TraitsOf returns the row of a kind, with the port and the VNI of the device.
func TraitsOf(k Kind) Traits { return k.traits() }

// TraitsOfLink returns the row for a tunnel device by its type of link and its name; false: the device is no tunnel of
// flannel's. Another program can have a tunnel with such a type and name. The port is that in the name, or the default.
// The VNI is 0, even if the name has one. At most one row fits.
func TraitsOfLink(link, name string) (t Traits, isTunnel bool) {
	for _, k := range tunnels { // all kinds of tunnels of Linux, with zero fields: rows with the defaults (kinds.go)
		t := k.traits()
		if !slices.Contains(t.Links, link) {
			continue
		}
		parts := t.Name.FindStringSubmatch(name) // the name, and the port if the kind has it there
		if len(parts) > 1 {
			port, err := strconv.ParseUint(parts[1], 10, 16)
			if err != nil {
				continue
			}
			t.Port = cmp.Or(uint16(port), t.Port)
		}
		if parts != nil {
			return t, true
		}
	}
	return Traits{}, false
}

// TraitsOfBackend returns the row of the backend's tunnels on Linux; the zero Traits: the backend has no tunnels, or is
// unknown, or the name is "". At most one row fits.
func TraitsOfBackend(name string) Traits {
	for _, k := range tunnels {
		if t := k.traits(); t.Backend == name {
			return t
		}
	}
	return Traits{}
}

// Overhead returns the bytes that the tunnel adds to a pod's packet in the worst case. The outer IP header is IPv6 if v6 is
// true, or if the device does not know which family its packets will have.
func (t Traits) Overhead(v6 bool) int {
	switch {
	case t.Protocol == 0:
		return 0
	case v6 || t.AnyFamily:
		return ipv6 + t.Header + t.Trailer
	}
	return ipv4 + t.Header + t.Trailer
}

// MinMTU returns the smallest MTU in bytes that pods can have, for an address family: 576 for IPv4
// (RFC 791: every host must accept such a datagram), 1280 for IPv6 (RFC 8200). Backends return an
// error if the configuration or the underlay leaves pods less.
func MinMTU(v6 bool) int {
	if v6 {
		return 1280
	}
	return 576
}
