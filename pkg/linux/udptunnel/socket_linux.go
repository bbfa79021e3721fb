package udptunnel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"unsafe"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

const (
	maxDatagram = 1<<16 - 1                  // what the kernel hands over at once, in bytes
	maxPayload  = maxDatagram - ipHeader - 8 // of UDP, whose header has 8 bytes
	maxSegments = 64                         // in one segmented datagram: UDP_MAX_SEGMENTS of linux/udp.h, before 6.9

	// bufferSize is that of the socket's buffers for receiving and for sending, in bytes: enough
	// for some milliseconds at 10 Gb/s. The kernel's default of 208 KiB holds three
	// segmented datagrams.
	bufferSize = 7 << 20
)

// socket is a UDP socket that sends and receives many datagrams in one call. Where the
// kernel can, one call for the network stack sends up to 64 datagrams of the same size
// (UDP_SEGMENT), and received ones come together likewise (UDP_GRO), see udp(7).
//
// The sender calls add and flush, the receiver uses batch to read and WriteTo to answer, each on its
// goroutine.
type socket struct {
	*net.UDPConn
	batch *ipv4.PacketConn // the same socket, for many messages in one call

	// For sending.
	segment  bool           // the kernel can segment, and no device of the underlay has refused it yet
	messages []ipv4.Message // queued by add; each has datagrams of one size to one peer
	sizes    []int          // the size of the datagrams in each message; the last datagram may be shorter
	used     int            // number of messages that are queued
}

// maxMessages bounds the messages of one system call: those of one read from the device (MaxSegments),
// if each is to another peer.
const maxMessages = 128

// openSocket opens a socket with an address of this node, in the network namespace of the calling thread.
func openSocket(local netip.AddrPort) (*socket, error) {
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) { failed = setOptions(int(fd)) })
		return errors.Join(err, failed)
	}}
	conn, err := config.ListenPacket(context.Background(), "udp4", local.String())
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return nil, fmt.Errorf("another process uses UDP port %d of %s, perhaps flannel's flanneld: stop it, or set another Backend.Port for all nodes: %w",
			local.Port(), local.Addr(), err)
	case err != nil:
		return nil, fmt.Errorf("open UDP port %d of %s: %w", local.Port(), local.Addr(), err)
	}
	s := &socket{UDPConn: conn.(*net.UDPConn)}
	s.batch = ipv4.NewPacketConn(s.UDPConn)
	raw, err := s.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) {
			_, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_SEGMENT)
			s.segment = err == nil
		})
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.messages, s.sizes = make([]ipv4.Message, maxMessages), make([]int, maxMessages)
	for i := range s.messages {
		s.messages[i].OOB = make([]byte, 0, unix.CmsgSpace(2)) // for the size of the datagrams, see appendSegmentSize
	}
	return s, nil
}

// setOptions sets the options of the socket. A kernel that lacks UDP_GRO hands over
// one datagram at a time. As with VXLAN, routers may fragment the datagrams.
func setOptions(fd int) error {
	// Each option, and the one that takes its place without NET_ADMIN.
	for force, limited := range map[int]int{unix.SO_RCVBUFFORCE: unix.SO_RCVBUF, unix.SO_SNDBUFFORCE: unix.SO_SNDBUF} {
		err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, bufferSize)
		if errors.Is(err, unix.EPERM) { // in a user namespace; net.core.rmem_max and wmem_max are the limit
			err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, limited, bufferSize)
		}
		if err != nil {
			return fmt.Errorf("enlarge its buffers: %w", err)
		}
	}
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_GRO, 1) // an error: the kernel lacks it
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DONT); err != nil {
		return fmt.Errorf("allow fragments: %w", err)
	}
	return nil
}

// add queues a datagram, which must stay as it is until flush. full means that flush
// must be called before the next add. It adds the datagram to the last message if that is to
// the same peer (by its pointer, which is the same for all packets to it), has only datagrams
// of one size, none of which is shorter than this one, and stays within the kernel's limits.
func (s *socket) add(payload []byte, to *net.UDPAddr) (full bool) {
	if last := s.used - 1; last >= 0 && s.segment {
		m := &s.messages[last]
		if m.Addr == net.Addr(to) && len(m.Buffers) < maxSegments && len(payload) <= s.sizes[last] &&
			len(m.Buffers[len(m.Buffers)-1]) == s.sizes[last] && (len(m.Buffers)+1)*s.sizes[last] <= maxPayload {
			m.Buffers = append(m.Buffers, payload)
			return false
		}
	}
	m := &s.messages[s.used]
	m.Addr, m.Buffers, s.sizes[s.used] = to, append(m.Buffers[:0], payload), len(payload)
	s.used++
	return s.used == maxMessages
}

// flush sends what was added, and empties the queue. failed is the number of datagrams that the
// kernel refused. It blocks while the socket's buffer is full. The only error is net.ErrClosed, wrapped.
func (s *socket) flush() (failed int, err error) {
	queued := s.messages[:s.used]
	for i := range queued {
		queued[i].OOB = queued[i].OOB[:0]
		if len(queued[i].Buffers) > 1 {
			queued[i].OOB = appendSegmentSize(queued[i].OOB, s.sizes[i])
		}
	}
	s.used = 0
	for len(queued) > 0 {
		n, err := s.batch.WriteBatch(queued, 0)
		queued = queued[max(n, 0):] // -1: none was sent
		if err == nil {
			continue
		}
		if errors.Is(err, net.ErrClosed) {
			return failed, err
		}
		failed += s.sendSingly(queued[0], err) // err is about the first that was not sent
		queued = queued[1:]
	}
	return failed, nil
}

// sendSingly sends the datagrams of a message that the kernel refused with cause, one
// by one, and returns how many it refuses even so.
func (s *socket) sendSingly(m ipv4.Message, cause error) (failed int) {
	if len(m.Buffers) == 1 {
		return 1
	}
	if errors.Is(cause, unix.EIO) { // the underlay cannot compute checksums, so it cannot segment
		s.segment = false
	}
	for _, payload := range m.Buffers {
		if _, err := s.WriteTo(payload, m.Addr); err != nil {
			failed++
		}
	}
	return failed
}

// appendSegmentSize appends the control message that makes the kernel segment.
func appendSegmentSize(oob []byte, size int) []byte {
	oob = oob[:unix.CmsgSpace(2)]
	clear(oob)
	header := (*unix.Cmsghdr)(unsafe.Pointer(&oob[0]))
	header.Level, header.Type = unix.SOL_UDP, unix.UDP_SEGMENT
	header.SetLen(unix.CmsgLen(2))
	binary.NativeEndian.PutUint16(oob[unix.CmsgLen(0):], uint16(size))
	return oob
}

// segmentSize returns the size of the datagrams that came together, of which the last may be
// shorter; 0: there is one. oob has the control messages of a received message.
func segmentSize(oob []byte) int {
	for len(oob) >= unix.CmsgLen(0) {
		header, data, rest, err := unix.ParseOneSocketControlMessage(oob)
		if err != nil {
			return 0
		}
		if header.Level == unix.SOL_UDP && header.Type == unix.UDP_GRO && len(data) >= 4 {
			return int(binary.NativeEndian.Uint32(data)) // an int, unlike that of UDP_SEGMENT
		}
		oob = rest
	}
	return 0
}
