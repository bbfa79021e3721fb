package wine

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"unicode/utf16"

	"flannel/pkg/windows/hns"
)

// The structures of the IP Helper API in the memory layout of 64-bit Windows
// (iptypes.h, netioapi.h), so that the DLL only needs to copy them. Blank
// fields are padding or fields that nobody reads. pack and unpack convert them.

// sockaddr is a SOCKADDR_INET.
type sockaddr struct {
	Family uint16
	Port   uint16
	Rest   [24]byte // IPv4: 4 bytes of address; IPv6: flow information, 16 bytes of address, scope
}

const (
	inet4 = 2
	inet6 = 23
)

func toSockaddr(a netip.Addr) (s sockaddr) {
	switch {
	case a.Is4():
		s.Family = inet4
		copy(s.Rest[:], a.AsSlice())
	case a.Is6():
		s.Family = inet6
		copy(s.Rest[4:], a.AsSlice())
	}
	return s
}

// addr is the inverse of toSockaddr; invalid for another family.
func (s sockaddr) addr() netip.Addr {
	switch s.Family {
	case inet4:
		return netip.AddrFrom4([4]byte(s.Rest[:4]))
	case inet6:
		return netip.AddrFrom16([16]byte(s.Rest[4:20]))
	}
	return netip.Addr{}
}

// forwardRow is a MIB_IPFORWARD_ROW2.
type forwardRow struct {
	LUID      uint64
	Index     uint32
	Dst       sockaddr
	Bits      uint8
	_         [3]byte
	NextHop   sockaddr
	_         [4]byte // site prefix length
	Valid     uint32
	Preferred uint32
	Metric    uint32
	Protocol  uint32
	_         [4]byte // loopback, autoconfigured, published, immortal
	_         [8]byte // age, origin
}

const (
	protocolLocal   = 2 // the stack itself
	protocolNetMgmt = 3 // a program or a person
	forever         = 0xffffffff
)

func toForwardRow(r hns.Route) forwardRow {
	row := forwardRow{
		LUID: luid(r.Index), Index: uint32(r.Index), Dst: toSockaddr(r.Dst.Addr()), Bits: uint8(r.Dst.Bits()),
		NextHop: toSockaddr(r.NextHop), Valid: forever, Preferred: forever, Metric: uint32(r.Metric),
		Protocol: protocolLocal,
	}
	if r.Ours {
		row.Protocol = protocolNetMgmt
	}
	return row
}

func (row forwardRow) route() hns.Route {
	return hns.Route{
		Dst: netip.PrefixFrom(row.Dst.addr(), int(row.Bits)), NextHop: row.NextHop.addr(),
		Index:  index(row.LUID, row.Index),
		Metric: int(row.Metric), Ours: row.Protocol == protocolNetMgmt,
	}
}

// interfaceRow is a MIB_IPINTERFACE_ROW.
type interfaceRow struct {
	Family        uint16
	_             [6]byte
	LUID          uint64
	Index         uint32
	_             [20]byte // sizes, identifier, intervals
	_             uint8    // advertises
	Forwarding    uint8
	_             [2]byte
	AutoMetric    uint8
	_             [99]byte
	SitePrefixLen uint32
	Metric        uint32
	MTU           uint32
	Connected     uint8
	_             [11]byte
}

// unicastRow is a MIB_UNICASTIPADDRESS_ROW.
type unicastRow struct {
	Address sockaddr
	_       [4]byte
	LUID    uint64
	Index   uint32
	Prefix  uint32 // origin
	Suffix  uint32 // origin
	_       [8]byte
	Bits    uint8
	_       [3]byte
	DAD     uint32
	_       [12]byte // scope, time of creation
}

// ifRow is a MIB_IF_ROW2.
type ifRow struct {
	LUID        uint64
	Index       uint32
	GUID        [16]byte
	Alias       [257]uint16
	Description [257]uint16
	MACLength   uint32
	MAC         [32]byte
	_           [32]byte // permanent address
	MTU         uint32
	Type        uint32
	_           [20]byte // tunnel, media, access
	Flags       uint8
	_           [3]byte
	OperStatus  uint32
	_           [192]byte
}

// adapterRow is an IP_ADAPTER_ADDRESSES. Its pointers are offsets, see blob.
type adapterRow struct {
	Length, Index                    uint32
	Next, Name                       uint64
	Unicast, Anycast, Multicast, DNS uint64
	Suffix, Description, Friendly    uint64
	MAC                              [8]byte
	MACLength, Flags, MTU, Type      uint32
	OperStatus, IPv6Index            uint32
	_                                [64]byte // zones
	_                                [40]byte // prefixes, speeds, WINS servers, gateways
	V4Metric, V6Metric               uint32
	LUID                             uint64
	_                                [16]byte // DHCP server
	Compartment                      uint32
	_                                [16]byte // network
	ConnectionType                   uint32
	_                                [172]byte
}

// unicastEntry is an IP_ADAPTER_UNICAST_ADDRESS.
type unicastEntry struct {
	Length, Flags    uint32
	Next, Sockaddr   uint64
	SockaddrLength   uint64
	Prefix, Suffix   uint32
	DAD              uint32
	Valid, Preferred uint32
	_                uint32
	Bits             uint8
	_                [7]byte
}

// serverEntry is an IP_ADAPTER_DNS_SERVER_ADDRESS.
type serverEntry struct {
	Length, _      uint32
	Next, Sockaddr uint64
	SockaddrLength uint64
}

// Constants of iptypes.h, ipifcons.h and nldef.h.
const (
	ddnsEnabled   = 1
	dhcpEnabled   = 4
	ipv4And6      = 0x180
	typeEthernet  = 6
	typeLoopback  = 24
	typeVirtual   = 53
	typeWiFi      = 71
	statusUp      = 1
	statusDown    = 2
	originManual  = 1
	originOther   = 4 // from the link layer address
	dadTentative  = 1
	dadDeprecated = 3
	dadPreferred  = 4
	filterFlag    = 2 // MIB_IF_ROW2: a filter driver instead of an adapter
)

// luid returns the locally unique identifier of an adapter, which consists of a type (16
// bits), a number (24 bits) and reserved bits. The number is the index here; on Windows the
// two differ.
func luid(index int) uint64 {
	if index == 0 {
		return 0
	}
	return uint64(typeEthernet)<<48 | uint64(index)<<24
}

// index returns the index of the adapter in a row, which names it by LUID or by
// index.
func index(luid uint64, index uint32) int {
	if luid != 0 {
		return int(luid >> 24 & 0xffffff)
	}
	return int(index)
}

// pack returns the memory of a structure or a number.
func pack(v any) []byte {
	b, _ := binary.Append(nil, binary.LittleEndian, v) // all sizes are fixed
	return b
}

// unpack is the inverse of pack. It reports whether b has the right size.
func unpack(b []byte, v any) bool {
	return len(b) == binary.Size(v) && binary.Read(bytes.NewReader(b), binary.LittleEndian, v) == nil
}

// table encodes a MIB table: the number of rows (8 bytes with padding), and the rows.
func table[T any](rows []T) []byte {
	b := pack(uint64(len(rows)))
	for _, r := range rows {
		b = append(b, pack(r)...)
	}
	return b
}

// wide encodes text in UTF-16 with a terminating zero.
func wide(s string) []uint16 { return append(utf16.Encode([]rune(s)), 0) }

// guid encodes a GUID in its memory layout.
func guid(s string) (g [16]byte) {
	var hex []byte
	for _, part := range bytes.Split([]byte(s), []byte("-")) {
		hex = append(hex, part...)
	}
	raw := fromHex(hex)
	// The first three parts are little-endian numbers.
	for i, from := range []int{3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15} {
		if from < len(raw) {
			g[i] = raw[from]
		}
	}
	return g
}
