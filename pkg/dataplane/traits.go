package dataplane

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// Traits are what others than its driver have to know of a kind of device: the backends, the doctor, the packets with which
// the doctor tests paths, and the guard. The rows are the methods traits in kinds.go. They have the properties of one device
// where these are known, and otherwise the defaults of the kind.
type Traits struct {
	Kind    string   // name for messages
	Backend string   // that has such devices; "": none has them alone
	Links   []string // types of link of the tunnel devices, in the netlink library; nil: the kind has none
	Prefix  string   // of the names of these devices; "": flannel's
	MTUKey  bool     // the configuration of the backend has the key MTU

	// What follows is about the packets between the nodes, if Protocol is not 0. The packet of a pod is in them.

	Protocol  uint8  // of the outer IP header
	Port      uint16 // to which UDP datagrams are sent; 0: the protocol has none, or each device has its own
	VNI       uint32 // in the header of VXLAN; 0: any, or there is no such header
	Header    int    // bytes between the outer IP header and that of the pod's packet
	Trailer   int    // bytes behind the pod's packet
	Frame     bool   // the pod's packet is in an Ethernet frame, the last part of Header
	Keys      bool   // a device sends nothing before it and the peer have agreed on keys, which tell who the sender is
	AnyFamily bool   // a device sends by IPv4 and by IPv6

	portInName bool // the name of a device ends in its port, or in 0 if that is Port
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
	// Of ESP (RFC 4303), in the worst case of the usual algorithms, AES-CBC with SHA-256. The
	// trailer is up to 15 bytes of padding, 2, and the checksum.
	espHeader  = 8 + 16 // the latter is the initialization vector
	espTrailer = 15 + 2 + 16
)

// prefix is what the names of all tunnel devices begin with.
const prefix = "flannel"

// TraitsOf returns the row of a kind, with the port and the VNI of the device.
func TraitsOf(k Kind) Traits { return k.traits() }

// TraitsOfLink returns the row for a tunnel device by its type of link and its name; false: it is no tunnel of flannel's, but
// may be one of others, such as the underlay. The port is that in the name, or the default.
func TraitsOfLink(link, name string) (t Traits, isTunnel bool) {
	for _, k := range tunnels {
		if t = k.traits(); slices.Contains(t.Links, link) && strings.HasPrefix(name, cmp.Or(t.Prefix, prefix)) {
			if t.portInName {
				port, _ := strconv.ParseUint(strings.TrimPrefix(name, prefix), 10, 16)
				t.Port = cmp.Or(uint16(port), t.Port)
			}
			return t, true
		}
	}
	return Traits{}, false
}

// TraitsOfBackend returns the row of the backend's tunnels; the zero Traits: it has none.
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

// MinMTU returns the smallest MTU in bytes for an address family: 576 for IPv4 (RFC
// 791: every host must accept such a datagram), 1280 for IPv6 (RFC 8200).
func MinMTU(v6 bool) int {
	if v6 {
		return 1280
	}
	return 576
}
