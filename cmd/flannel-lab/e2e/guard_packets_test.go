package e2e

import (
	"encoding/binary"
	"encoding/json"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"flannel/cmd/flannel-lab/machine"
	"flannel/pkg/dataplane"
)

// dialFrom makes a socket in other namespaces; without a source, the kernel chooses one.
func dialFrom(ns machine.Namespaces, source netip.Addr, to netip.AddrPort) (c net.Conn, err error) {
	local := &net.UDPAddr{}
	if source.IsValid() {
		local.IP = source.AsSlice()
	}
	err = ns.Do(func() error { c, err = net.DialUDP("udp", local, net.UDPAddrFromAddrPort(to)); return err })
	return c, err
}

// dialIP makes a socket for packets of protocol 4.
func dialIP(ns machine.Namespaces, to netip.Addr) (c net.Conn, err error) {
	err = ns.Do(func() error { c, err = net.DialIP("ip4:4", nil, &net.IPAddr{IP: to.AsSlice()}); return err })
	return c, err
}

// encapsulate returns the payload of a datagram that carries a packet to the victim.
func (s *guardTest) encapsulate(t *testing.T, backend string, source netip.Addr) []byte {
	packet := udpPacket(netip.AddrPortFrom(source, 4242), netip.AddrPortFrom(s.victim(), s.port), []byte("forged"))
	if backend != "vxlan" {
		return packet
	}
	_, value := leaseOf(t, s.l, s.l.Nodes[1])
	var lease struct{ BackendData, BackendV6Data struct{ VtepMAC string } }
	must(t, json.Unmarshal([]byte(value), &lease))
	text, etherType := lease.BackendData.VtepMAC, uint16(unix.ETH_P_IP)
	if s.v6 {
		text, etherType = lease.BackendV6Data.VtepMAC, unix.ETH_P_IPV6
	}
	if text == "" { // there is no VTEP
		text = "02:00:00:00:00:01"
	}
	to, err := dataplane.ParseMAC(text)
	must(t, err)
	frame := []byte{8, 0, 0, 0, 0, 0, 1, 0} // RFC 7348: flag I, VNI 1
	frame = append(frame, to[:]...)
	frame = append(frame, 2, 0, 0, 0, 0, 9)
	return append(binary.BigEndian.AppendUint16(frame, etherType), packet...)
}

// udpPacket returns an IP packet with a UDP datagram, whose payload has an even number of
// bytes.
func udpPacket(from, to netip.AddrPort, payload []byte) []byte {
	length := uint16(8 + len(payload))
	var p []byte
	if from.Addr().Is4() {
		p = append(p, 0x45, 0)
		p = binary.BigEndian.AppendUint16(p, 20+length)
		p = append(p, 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0)
	} else {
		p = append(p, 0x60, 0, 0, 0)
		p = binary.BigEndian.AppendUint16(p, length)
		p = append(p, unix.IPPROTO_UDP, 64)
	}
	addrs := append(from.Addr().AsSlice(), to.Addr().AsSlice()...)
	p = append(p, addrs...)
	if from.Addr().Is4() {
		binary.BigEndian.PutUint16(p[10:], dataplane.Checksum(p))
	}
	udp := binary.BigEndian.AppendUint16(nil, from.Port())
	udp = binary.BigEndian.AppendUint16(udp, to.Port())
	udp = binary.BigEndian.AppendUint16(udp, length)
	udp = append(append(udp, 0, 0), payload...)
	pseudo := append(addrs, byte(length>>8), byte(length), 0, unix.IPPROTO_UDP) // RFC 768, RFC 8200
	binary.BigEndian.PutUint16(udp[6:], dataplane.Checksum(append(pseudo, udp...)))
	return append(p, udp...)
}
