package guard

import (
	"encoding/binary"
	"net"
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// What rules compare, as expressions of the kernel, for rules_linux.go. Each function
// returns expressions that a rule runs in order; they load into register 1, and a
// comparison that fails ends the rule.

func goTo(chain string) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}}
}

// ifname is the name of an interface as the kernel compares it: IFNAMSIZ bytes.
func ifname(name string) string {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, name)
	return string(padded)
}

func iifname() []expr.Any { return []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}} }

func iif(name string) []expr.Any {
	return append(iifname(), &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte(ifname(name))})
}

func lookup(load []expr.Any, set string) []expr.Any {
	return append(load, &expr.Lookup{SourceRegister: 1, SetName: set})
}

// field is an address in the IP header.
type field struct{ offset4, offset6 uint32 } // bytes

var source, destination = field{12, 8}, field{16, 24}

// load loads an address of one family; packets of the other do not match.
func load(f field, v6 bool) []expr.Any {
	family, payload := byte(unix.NFPROTO_IPV4), &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: f.offset4, Len: 4}
	if v6 {
		family, payload.Offset, payload.Len = unix.NFPROTO_IPV6, f.offset6, 16
	}
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{family}}, payload}
}

// addr matches an address in p.
func addr(f field, p netip.Prefix) []expr.Any { return compare(load(f, p.Addr().Is6()), p) }

// compare matches if the address that load loads is in p.
func compare(load []expr.Any, p netip.Prefix) []expr.Any {
	return compareWith(expr.CmpOpEq, load, p)
}

// compareWith compares the network of the address that load loads with p.
func compareWith(op expr.CmpOp, load []expr.Any, p netip.Prefix) []expr.Any {
	size := p.Addr().BitLen() / 8
	if !p.IsSingleIP() {
		load = append(load, &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: uint32(size), Mask: net.CIDRMask(p.Bits(), 8*size), Xor: make([]byte, size)})
	}
	return append(load, &expr.Cmp{Op: op, Register: 1, Data: p.Masked().Addr().AsSlice()})
}

// innerDestination loads the destination of the IPv4 packet that a packet of protocol 4
// contains.
func innerDestination() []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: destination.offset4, Len: 4}}
}

// vni matches the VNI in the header of VXLAN (RFC 7348), which follows that of UDP. 0
// matches all datagrams.
func vni(number uint32) []expr.Any {
	if number == 0 {
		return nil
	}
	return []expr.Any{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 8 + 4, Len: 3},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.BigEndian.AppendUint32(nil, number)[1:]}}
}

func protocol(number byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{number}}}
}

func dport(p uint16) []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.BigEndian.AppendUint16(nil, p)}}
}

// unrouted matches a source that is not routed to the interface from which the packet
// comes.
func unrouted() []expr.Any {
	return []expr.Any{&expr.Fib{Register: 1, ResultOIF: true, FlagSADDR: true, FlagIIF: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: make([]byte, 4)}}
}
