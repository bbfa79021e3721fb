package e2e

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"flannel/cmd/flannel-lab/lab"
	"flannel/pkg/dataplane"
)

// The wire format of the udp backend, written by hand: each datagram is an IPv4
// packet. These functions are apart from flanneld's own, so that both cannot be
// wrong alike. They share dataplane.Checksum, which TestChecksum tests with known sums.

const ipHeader = 20

// sealed sets the checksum of a packet's header.
func sealed(p []byte) []byte {
	copy(p[10:], []byte{0, 0})
	binary.BigEndian.PutUint16(p[10:], dataplane.Checksum(p[:ipHeader]))
	return p
}

// echoRequest is a ping.
func echoRequest(from, to netip.Addr) []byte {
	p := append(make([]byte, ipHeader), 8, 0, 0, 0, 0x12, 0x34, 0, 1, 'p', 'i', 'n', 'g')
	binary.BigEndian.PutUint16(p[ipHeader+2:], dataplane.Checksum(p[ipHeader:]))
	p[0], p[3], p[8], p[9] = 0x45, byte(len(p)), 64, 1
	copy(p[12:], from.AsSlice())
	copy(p[16:], to.AsSlice())
	return sealed(p)
}

// answerPings answers the pings in the datagrams of a socket until reading fails.
func answerPings(peer *net.UDPConn) error {
	p := make([]byte, 1<<16)
	for {
		n, from, err := peer.ReadFromUDPAddrPort(p)
		if err != nil {
			return err
		}
		packet := p[:n]
		if n < ipHeader+8 || packet[0] != 0x45 || packet[9] != 1 || packet[ipHeader] != 8 {
			continue
		}
		source := [4]byte(packet[12:16])
		copy(packet[12:16], packet[16:20])
		copy(packet[16:20], source[:])
		packet[8], packet[ipHeader], packet[ipHeader+2], packet[ipHeader+3] = 64, 0, 0, 0
		binary.BigEndian.PutUint16(packet[ipHeader+2:], dataplane.Checksum(packet[ipHeader:]))
		if _, err := peer.WriteToUDPAddrPort(sealed(packet), from); err != nil {
			return err
		}
	}
}

// droppedPackets is a metric of a node.
func droppedPackets(t *testing.T, n *lab.Node, reason string) float64 {
	t.Helper()
	return numbers(t, n)[fmt.Sprintf(`flanneld_udp_dropped_packets_total{reason=%q}`, reason)]
}
