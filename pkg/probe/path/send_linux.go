// This file sends the packets of Test other than plain echo requests: VXLAN frames made
// by hand, TCP connections, and packets with an IP header of their own. The sniffer
// sees their answers.

package path

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"flannel/pkg/dataplane"
)

// kubeletPort is a TCP port that the firewalls of nodes usually accept. If nothing
// listens, the answer is a reset, which does as well.
const kubeletPort = 10250

// newToken returns a token that no other packet has.
func newToken() (t token) {
	_, _ = rand.Read(t[:]) // it never fails
	return t
}

// repeat calls send up to three times until there is an answer or the time is over. The
// sniffer closes answered. The result is nil with an answer, and else the error of the last
// send, which is nil, too, if that packet was sent: whether there was an answer, the caller
// asks the watch (watch.test).
func repeat(within time.Duration, answered <-chan struct{}, send func() error) (err error) {
	for range attempts {
		err = send()
		select {
		case <-answered:
			return nil
		case <-time.After(within / attempts):
		}
	}
	return err
}

// frameSender sends VXLAN frames that it made by hand, if the path leads through a VXLAN
// device. They leave without that device and the firewall rules for it, have whole checksums, and can
// be for another MAC address than the lease says: for all, to find out who answers. So the
// doctor can tell why packets of the kernel are not answered. Their outer source port is that
// of conn, not one that the device would choose.
type frameSender struct {
	conn     *net.UDPConn // to the peer's public IP and the port of VXLAN
	vni      uint32
	own      dataplane.MAC // of our VTEP
	ownAddr  netip.Addr
	peerAddr netip.Addr // of the peer's VTEP
}

// send sends a frame to the VTEP that has the MAC address dst.
func (s frameSender) send(dst dataplane.MAC, etherType uint16, payload []byte) error {
	_, err := s.conn.Write(vxlanFrame(s.vni, dst, s.own, etherType, payload))
	if errors.Is(err, unix.ECONNREFUSED) { // the answer to the one before, which the sniffer has seen
		_, err = s.conn.Write(vxlanFrame(s.vni, dst, s.own, etherType, payload))
	}
	return err
}

// echo sends an echo request.
func (s frameSender) echo(dst dataplane.MAC, t token) error {
	m := echoRequest(s.ownAddr, s.peerAddr, 0, t, smallPacket) // sequence 0; below, the hop limit is 64, as usual
	return s.send(dst, s.etherType(), ipPacket(s.ownAddr, s.peerAddr, icmpOf(s.peerAddr), 64, m))
}

// syn sends the first packet of a TCP connection from the port from, which a socket is bound
// to, but no connection of the kernel has. So our kernel answers the peer's SYN-ACK by a reset,
// which ends the connection there.
func (s frameSender) syn(dst dataplane.MAC, from uint16) error {
	m := syn(netip.AddrPortFrom(s.ownAddr, from), netip.AddrPortFrom(s.peerAddr, kubeletPort), mathrand.Uint32())
	return s.send(dst, s.etherType(), ipPacket(s.ownAddr, s.peerAddr, unix.IPPROTO_TCP, 64, m))
}

// etherType returns the type of frames with packets of the pods' family.
func (s frameSender) etherType() uint16 {
	if s.peerAddr.Is6() {
		return etherIPv6
	}
	return etherIPv4
}

// connection is a TCP connection that the kernel opens. Its port is known before the
// first packet is sent, so that the sniffer can be told to look for the port (a watch).
type connection struct {
	fd   int
	from netip.AddrPort // the address and the port that it is bound to
}

// newConnection binds a connection to an address of this node and a free port.
func newConnection(src netip.Addr) (connection, error) {
	family := unix.AF_INET
	if src.Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return connection{}, err
	}
	c := connection{fd: fd}
	if err = unix.Bind(fd, socketAddress(netip.AddrPortFrom(src, 0))); err == nil {
		var at unix.Sockaddr
		if at, err = unix.Getsockname(fd); err == nil {
			switch at := at.(type) {
			case *unix.SockaddrInet4:
				c.from = netip.AddrPortFrom(netip.AddrFrom4(at.Addr), uint16(at.Port))
			case *unix.SockaddrInet6:
				c.from = netip.AddrPortFrom(netip.AddrFrom16(at.Addr), uint16(at.Port))
			}
		}
	}
	if err != nil {
		return connection{}, errors.Join(fmt.Errorf("bind to %s: %w", src, err), unix.Close(fd))
	}
	return c, nil
}

// open sends the first packet; the kernel repeats it after a second.
func (c connection) open(dst netip.Addr) error {
	if err := unix.Connect(c.fd, socketAddress(netip.AddrPortFrom(dst, kubeletPort))); err != nil && err != unix.EINPROGRESS {
		return err
	}
	return nil
}

// close ends the connection.
func (c connection) close() { _ = unix.Close(c.fd) }

// hostAnswersTCP reports whether a host answers a TCP connection, also by a reset, before
// ctx ends.
func hostAnswersTCP(ctx context.Context, addr netip.Addr) bool {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", netip.AddrPortFrom(addr, kubeletPort).String())
	if err == nil {
		_ = conn.Close()
	}
	return err == nil || errors.Is(err, syscall.ECONNREFUSED)
}

// hostAnswersUDP reports whether a host answers a datagram to a port on which nothing
// listens.
func hostAnswersUDP(within time.Duration, addr netip.Addr) bool {
	conn, err := net.Dial("udp", netip.AddrPortFrom(addr, 1).String()) // tcpmux, which nobody has used
	if err != nil {
		return false
	}
	defer conn.Close() //nolint:errcheck // nothing is buffered
	for range attempts {
		_, err = conn.Write([]byte{0, 0})
		if err == nil && conn.SetReadDeadline(time.Now().Add(within/attempts)) == nil {
			_, err = conn.Read(make([]byte, 1))
		}
		if errors.Is(err, syscall.ECONNREFUSED) {
			return true
		}
	}
	return false
}

// sendRaw sends a packet with its own IP header. planDirect needs that for a source address of
// a pod, which the host does not have. rawSocket connects the socket to dst.
func sendRaw(dst netip.Addr, packet []byte) error {
	fd, err := rawSocket(dst, unix.IPPROTO_RAW) // includes IP_HDRINCL
	if err != nil {
		return err
	}
	defer unix.Close(fd) //nolint:errcheck // nothing is buffered
	_, err = unix.Write(fd, packet)
	return err
}
