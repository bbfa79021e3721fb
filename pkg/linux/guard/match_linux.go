package guard

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"

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

// equal and unequal compare register 1 with bytes. Without a match, the rule ends there.
func equal(data ...byte) expr.Any { return &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data} }

func unequal(data ...byte) expr.Any { return &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: data} }

// network and transport load bytes into register 1, at an offset from the IP header or from what
// follows it. A packet that is too short does not match.
func network(offset, size uint32) *expr.Payload {
	return &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size}
}

func transport(offset, size uint32) *expr.Payload {
	return &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: size}
}

// masked clears the bits of a register that the mask lacks.
func masked(register uint32, mask ...byte) expr.Any {
	return &expr.Bitwise{SourceRegister: register, DestRegister: register, Len: uint32(len(mask)), Mask: mask, Xor: make([]byte, len(mask))}
}

// ofFamily matches packets of one family.
func ofFamily(v6 bool) []expr.Any {
	family := byte(unix.NFPROTO_IPV4)
	if v6 {
		family = unix.NFPROTO_IPV6
	}
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, equal(family)}
}

// iifname loads the name of the interface from which the packet comes.
func iifname() []expr.Any { return []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}} }

// iif matches packets that come from this interface.
func iif(name string) []expr.Any {
	return append(iifname(), equal([]byte(ifname(name))...))
}

// lookup matches if the set has the value that load loads.
func lookup(load []expr.Any, set string) []expr.Any {
	return append(load, &expr.Lookup{SourceRegister: 1, SetName: set})
}

// field is an address in the IP header.
type field struct{ offset4, offset6 uint32 } // bytes

var source, destination = field{12, 8}, field{16, 24} // RFC 791, RFC 8200

// at returns where the address is: its offset in the header, and its length.
func (f field) at(v6 bool) (offset, size uint32) {
	if v6 {
		return f.offset6, 16
	}
	return f.offset4, 4
}

// load loads an address of one family; packets of the other do not match.
// The result has no spare capacity, so that several matches may begin with it.
func load(f field, v6 bool) []expr.Any {
	return slices.Clip(append(ofFamily(v6), network(f.at(v6))))
}

// rawSource loads the source of packets of one family, as load does. nft shows and loads
// it as bytes at an offset ("@nh,96,32"), not as an address, since the version in the
// header says which family it is, and not the metadata. The rule spoofed can thus use the
// sets of the kind inside, which nft knows as sets of bytes.
func rawSource(v6 bool) []expr.Any {
	return append(version(network(0, 1), v6), network(source.at(v6)))
}

// version matches an IP header of one family, whose first byte is loaded.
func version(first *expr.Payload, v6 bool) []expr.Any {
	number := byte(0x40)
	if v6 {
		number = 0x60
	}
	return []expr.Any{first, masked(1, 0xf0), equal(number)}
}

// addr matches an address in p.
func addr(f field, p netip.Prefix) []expr.Any { return compare(load(f, p.Addr().Is6()), p) }

// compare matches if the address that load loads is in p.
func compare(load []expr.Any, p netip.Prefix) []expr.Any {
	if !p.IsSingleIP() {
		load = append(load, masked(1, net.CIDRMask(p.Bits(), p.Addr().BitLen())...))
	}
	return append(load, equal(p.Masked().Addr().AsSlice()...))
}

// addrs has what addr returns for each of the networks.
func addrs(f field, networks []netip.Prefix) (all [][]expr.Any) {
	for _, n := range networks {
		all = append(all, addr(f, n))
	}
	return all
}

// innerDestination loads the destination of the packet inside of an outer packet. header is
// the number of bytes from the outer packet's transport header to the inner IP header
// (dataplane's Outer.Header). The inner packet is IPv4: the only protocol without ports is
// that of IPIP, which carries nothing else.
func innerDestination(header int) []expr.Any {
	offset, size := destination.at(false)
	return []expr.Any{transport(uint32(header)+offset, size)}
}

// vni matches the VNI in the header of VXLAN (RFC 7348), which follows that of UDP. 0, of
// tunnels by UDP that have no VNI, matches all datagrams.
func vni(number uint32) []expr.Any {
	if number == 0 {
		return nil
	}
	return []expr.Any{transport(8+4, 3), equal(binary.BigEndian.AppendUint32(nil, number)[1:]...)}
}

func protocol(number byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, equal(number)}
}

// notProtocol matches packets of any other protocol, if the kernel finds out which one.
func notProtocol(number byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, unequal(number)}
}

func dport(p uint16) []expr.Any {
	return []expr.Any{transport(2, 2), equal(binary.BigEndian.AppendUint16(nil, p)...)}
}

// anyPort matches packets that have a port. No packet is sent to port 0.
func anyPort() []expr.Any { return []expr.Any{transport(2, 2), unequal(0, 0)} }

// unrouted matches a source that is not routed to the interface from which the packet
// comes: the kernel looks up a route to the source through that interface, and 0 is none.
func unrouted() []expr.Any {
	return []expr.Any{&expr.Fib{Register: 1, ResultOIF: true, FlagSADDR: true, FlagIIF: true}, equal(0, 0, 0, 0)}
}
