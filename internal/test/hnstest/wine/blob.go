package wine

import (
	"encoding/binary"
	"encoding/hex"

	"flannel/pkg/windows/hns"
)

// blob is a memory block with pointers in it, as a call of the IP Helper API returns it.
// Until the DLL copies the block to its final address and adds that to the pointers, they
// are offsets from the start of the block.
type blob struct {
	bytes    []byte
	pointers []uint32 // offsets of the pointers
}

// put appends a value, aligned to 8 bytes, and returns its offset.
func (b *blob) put(v any) uint64 {
	for len(b.bytes)%8 != 0 {
		b.bytes = append(b.bytes, 0)
	}
	at := len(b.bytes)
	b.bytes = append(b.bytes, pack(v)...)
	return uint64(at)
}

// point sets the pointer at offset field to offset target.
func (b *blob) point(field, target uint64) {
	binary.LittleEndian.PutUint64(b.bytes[field:], target)
	b.pointers = append(b.pointers, uint32(field))
}

// Offsets of pointers in adapterRow, and in both unicastEntry and serverEntry (layout.go).
const (
	atNext        = 8
	atName        = 16
	atUnicast     = 24
	atDNS         = 48
	atSuffix      = 56
	atDescription = 64
	atFriendly    = 72

	atEntryNext     = 8
	atEntrySockaddr = 16
)

// adapterBlob encodes the result of GetAdaptersAddresses.
func adapterBlob(adapters []hns.Adapter) *blob {
	b := &blob{}
	last := uint64(0) // offset of the previous row
	for i, a := range adapters {
		at := b.put(toAdapterRow(a))
		if i > 0 {
			b.point(last+atNext, at)
		}
		last = at
		b.point(at+atName, b.put([]byte("{"+a.GUID+"}\x00")))
		b.point(at+atSuffix, b.put(wide("")))
		b.point(at+atDescription, b.put(wide(a.Description)))
		b.point(at+atFriendly, b.put(wide(a.Name)))
		field := at + atUnicast // of the pointer to the next element of the list
		for _, ip := range a.Addrs {
			field = b.entry(field, toUnicastEntry(ip), toSockaddr(ip.Prefix.Addr()))
		}
		field = at + atDNS
		for _, server := range a.DNS {
			field = b.entry(field, serverEntry{Length: 32, SockaddrLength: 28}, toSockaddr(server))
		}
	}
	return b
}

// entry appends an element to a linked list of addresses. field is the offset
// of the pointer to it. It returns the offset of the pointer to the next
// element.
func (b *blob) entry(field uint64, entry any, address sockaddr) uint64 {
	at := b.put(entry)
	b.point(field, at)
	b.point(at+atEntrySockaddr, b.put(address))
	return at + atEntryNext
}

// toAdapterRow encodes an adapter. adapterBlob sets the pointers.
func toAdapterRow(a hns.Adapter) adapterRow {
	row := adapterRow{
		Length: 448, Index: uint32(a.Index), IPv6Index: uint32(a.Index), LUID: luid(a.Index), MTU: uint32(a.MTU),
		Flags: ipv4And6, Type: typeEthernet, OperStatus: statusDown, Compartment: 1, ConnectionType: 1,
		V4Metric: uint32(a.V4Metric), V6Metric: uint32(a.V6Metric),
	}
	if a.DHCP {
		row.Flags |= dhcpEnabled
	}
	if a.Registers {
		row.Flags |= ddnsEnabled
	}
	if a.Up {
		row.OperStatus = statusUp
	}
	switch a.Kind {
	case hns.WiFi:
		row.Type = typeWiFi
	case hns.Tunnel:
		row.Type = typeVirtual
	case hns.Ethernet, hns.Team: // which differ by the name of the driver
	}
	if a.Loopback {
		row.Type = typeLoopback
	} else if a.Kind != hns.Tunnel {
		row.MACLength = uint32(copy(row.MAC[:], a.MAC[:]))
	}
	return row
}

func toUnicastEntry(ip hns.Address) unicastEntry {
	e := unicastEntry{
		Length: 64, SockaddrLength: 28, Prefix: originOther, Suffix: originOther, DAD: dadDeprecated, Valid: forever,
		Preferred: forever, Bits: uint8(ip.Prefix.Bits()),
	}
	if ip.Manual {
		e.Prefix, e.Suffix = originManual, originManual
	}
	if ip.Preferred {
		e.DAD = dadPreferred
	}
	if ip.Tentative {
		e.DAD = dadTentative
	}
	return e
}

// toIfRow encodes an adapter as a row of the table of interfaces.
func toIfRow(a hns.Adapter) ifRow {
	row := ifRow{LUID: luid(a.Index), Index: uint32(a.Index), GUID: guid(a.GUID), MTU: uint32(a.MTU),
		Type: typeEthernet, OperStatus: statusUp}
	row.MACLength = uint32(copy(row.MAC[:], a.MAC[:]))
	copy(row.Alias[:256], wide(a.Name))
	copy(row.Description[:256], wide(a.Description))
	return row
}

// fromHex decodes hexadecimal digits.
func fromHex(s []byte) []byte {
	b, _ := hex.AppendDecode(nil, s) // of invalid text only the valid beginning
	return b
}
