package path

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Socket sends echo requests, and receives requests and replies whose bodies begin with
// a prefix, and reports that the hop limit of such a request has ended. The kernel answers
// the requests. The daemon's reach.Prober has one for all peers. Only one goroutine at a time
// uses it, apart from Await and Close.
type Socket struct {
	families [2]*os.File        // IPv4, IPv6; the latter is nil on a kernel without IPv6
	raw      [2]syscall.RawConn // of families
	closed   atomic.Bool        // ends Await although messages keep arriving
	buffer   []byte             // of Receive
}

// maxPacket is more than any MTU of pods.
const maxPacket = 1 << 16

// OpenSocket opens a Socket in the network namespace of the calling thread. It needs
// CAP_NET_RAW. IPv6 may be missing.
func OpenSocket(prefix [4]byte) (*Socket, error) {
	s := &Socket{buffer: make([]byte, maxPacket)}
	for i, v6 := range []bool{false, true} {
		f, err := open(v6, prefix)
		if v6 && errors.Is(err, unix.EAFNOSUPPORT) {
			break
		}
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
		s.families[i] = f
		if s.raw[i], err = f.SyscallConn(); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	return s, nil
}

// open opens the socket of one family.
func open(v6 bool, prefix [4]byte) (*os.File, error) {
	family, protocol := unix.AF_INET, unix.IPPROTO_ICMP
	if v6 {
		family, protocol = unix.AF_INET6, unix.IPPROTO_ICMPV6
	}
	fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return nil, fmt.Errorf("open a raw socket: %w", err)
	}
	filter := filterFor(v6, prefix)
	set := []error{unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})}
	// Set the DF bit, and ignore what the kernel has learned about the path: a packet of
	// the full size must arrive whole.
	if v6 {
		set = append(set, unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE),
			unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_DONTFRAG, 1))
	} else {
		set = append(set, unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE))
	}
	if err := errors.Join(set...); err != nil {
		return nil, errors.Join(fmt.Errorf("prepare a raw socket: %w", err), unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), "icmp"), nil
}

// filterFor returns a program of the kernel's packet filter that accepts echo messages
// with a prefix, and reports about them: others, such as those of other programs, neither
// wake this process nor use the space of the socket. Loads are relative to the register X,
// which start sets to the length of the IP header; Jt and Jf are how many instructions to
// skip if the comparison holds or not.
func filterFor(v6 bool, prefix [4]byte) []unix.SockFilter {
	const (
		loadByte   = unix.BPF_LD | unix.BPF_B | unix.BPF_IND
		loadWord   = unix.BPF_LD | unix.BPF_W | unix.BPF_IND
		ifEqual    = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		returnThis = unix.BPF_RET | unix.BPF_K
	)
	want := uint32(prefix[0])<<24 | uint32(prefix[1])<<16 | uint32(prefix[2])<<8 | uint32(prefix[3])
	request, reply, exceeded := uint32(request4), uint32(reply4), uint32(exceeded4)
	start := unix.SockFilter{Code: unix.BPF_LDX | unix.BPF_B | unix.BPF_MSH} // the length of the IPv4 header
	if v6 {                                                                  // the kernel passes no IPv6 header
		request, reply, exceeded = request6, reply6, exceeded6
		start = unix.SockFilter{Code: unix.BPF_LDX | unix.BPF_W | unix.BPF_IMM}
	}
	return []unix.SockFilter{
		start,
		{Code: loadByte}, // the type of the ICMP message
		{Code: ifEqual, Jt: 3, K: request},
		{Code: ifEqual, Jt: 2, K: reply},
		{Code: ifEqual, Jt: 3, K: exceeded},
		{Code: returnThis},             // refuse other types
		{Code: loadWord, K: headerLen}, // the beginning of the body, of a request or a reply
		{Code: ifEqual, Jt: 2, Jf: 3, K: want},
		{Code: loadWord, K: uint32(quotedLen(v6))}, // and of the request that a report quotes
		{Code: ifEqual, Jf: 1, K: want},
		{Code: returnThis, K: maxPacket}, // accept the whole packet
		{Code: returnThis},               // refuse
	}
}

// exceededOf returns the type of the message that a hop limit has ended.
func exceededOf(v6 bool) byte {
	if v6 {
		return exceeded6
	}
	return exceeded4
}

// quotedLen returns where such a message has the body of an echo request: after its own
// header, the IP header of the request, without options, and the header of the request.
func quotedLen(v6 bool) int {
	if v6 {
		return headerLen + 40 + headerLen
	}
	return headerLen + 20 + headerLen
}

// Await calls arrived whenever messages have arrived, on one goroutine for each family, until
// the socket is closed. arrived calls Receive, and returns whether there may be more messages:
// the runtime only notices those that arrive after the socket was found empty.
func (s *Socket) Await(arrived func() (more bool)) {
	for _, raw := range s.raw {
		if raw == nil {
			continue
		}
		go func() {
			_ = raw.Read(func(uintptr) bool { // calls this when the socket is readable; an error: it is closed
				for arrived() && !s.closed.Load() {
				}
				return false // wait for the next message
			})
		}()
	}
}

// Close closes the socket.
func (s *Socket) Close() (err error) {
	s.closed.Store(true)
	for _, f := range s.families {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
	}
	return err
}

// control calls f with the descriptor of a family's socket.
func (s *Socket) control(v6 bool, f func(fd int) error) error {
	raw := s.raw[0]
	if v6 {
		raw = s.raw[1]
	}
	if raw == nil {
		return unix.EAFNOSUPPORT
	}
	var err error
	if controlErr := raw.Control(func(fd uintptr) { err = f(int(fd)) }); controlErr != nil {
		return controlErr
	}
	return err
}

// Send sends an echo request. A zero from leaves the source to the kernel, and hops 0 the
// hop limit. The packet is never fragmented.
func (s *Socket) Send(from, to netip.Addr, hops int, body []byte) error {
	message := echoMessage(to.Is6(), body)
	var control []byte
	var dst unix.Sockaddr
	if to.Is6() {
		dst = &unix.SockaddrInet6{Addr: to.As16()}
		if from.Is6() {
			control = unix.PktInfo6(&unix.Inet6Pktinfo{Addr: from.As16()})
		}
	} else {
		dst = &unix.SockaddrInet4{Addr: to.As4()}
		if from.Is4() {
			control = unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: from.As4()})
		}
	}
	if hops > 0 {
		control = append(control, hopLimit(to.Is6(), hops)...)
	}
	err := s.control(to.Is6(), func(fd int) error { return unix.Sendmsg(fd, message, control, dst, unix.MSG_DONTWAIT) })
	if err != nil {
		return fmt.Errorf("send an echo request to %s: %w", to, err)
	}
	return nil
}

// hopLimit returns a control message that sets the hop limit of one packet.
func hopLimit(v6 bool, hops int) []byte {
	const size = 4 // of an int
	b := make([]byte, unix.CmsgSpace(size))
	h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
	h.Level, h.Type = unix.IPPROTO_IP, unix.IP_TTL
	if v6 {
		h.Level, h.Type = unix.IPPROTO_IPV6, unix.IPV6_HOPLIMIT
	}
	h.SetLen(unix.CmsgLen(size))
	binary.NativeEndian.PutUint32(b[unix.CmsgLen(0):], uint32(hops))
	return b
}

// Receive returns a message that has arrived, with its body until the next call: a
// request, a reply, or (expired) the body of a request whose hop limit has ended at from.
// It does not block: ok is false if there is none.
func (s *Socket) Receive() (from netip.Addr, reply, expired bool, body []byte, ok bool) {
	for _, v6 := range []bool{false, true} {
		for { // until there is none, or one that can be read
			n := 0
			var sender unix.Sockaddr
			err := s.control(v6, func(fd int) (err error) {
				n, sender, err = unix.Recvfrom(fd, s.buffer, unix.MSG_DONTWAIT)
				return err
			})
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil {
				break // EAGAIN: nothing has arrived; or closed, or no IPv6
			}
			if from, reply, expired, body, ok = parse(s.buffer[:n], sender); ok {
				return from, reply, expired, body, true
			}
		}
	}
	return from, false, false, nil, false
}

// parse takes a message apart; ok is false if it is too short. Nobody has compared the
// checksum of an IPv4 one: the body must be recognizable.
func parse(b []byte, sender unix.Sockaddr) (from netip.Addr, reply, expired bool, body []byte, ok bool) {
	switch a := sender.(type) {
	case *unix.SockaddrInet4:
		from = netip.AddrFrom4(a.Addr)
		if len(b) == 0 || int(b[0]&0xf)*4 > len(b) { // the length of the IP header
			return from, false, false, nil, false
		}
		b = b[int(b[0]&0xf)*4:]
	case *unix.SockaddrInet6:
		from = netip.AddrFrom16(a.Addr)
	}
	header := headerLen
	if len(b) > 0 && b[0] == exceededOf(from.Is6()) {
		expired, header = true, quotedLen(from.Is6())
	}
	if len(b) < header || !from.IsValid() {
		return from, false, false, nil, false
	}
	return from, b[0] == reply4 || b[0] == reply6, expired, b[header:], true
}

// Up reports whether an interface exists and has a carrier.
func (s *Socket) Up(device string) bool {
	request, err := unix.NewIfreq(device)
	if err != nil {
		return false
	}
	// Any socket will do: false is IPv4.
	err = s.control(false, func(fd int) error { return unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, request) })
	return err == nil && request.Uint16()&unix.IFF_RUNNING != 0
}
