// This file sees which packets of Test leave this node and which answers arrive, with
// a packet socket (as tcpdump does): also answers that the host's firewall drops, or
// that no socket waits for.

package path

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"flannel/pkg/doctor"
)

// maxSniffed limits the packets that a sniffer looks at, in bytes. Those to look for
// are smaller.
const maxSniffed = 512

// sniffer sees the packets of all interfaces, outgoing ones after and incoming ones
// before the firewall, and tells watches of them.
type sniffer struct {
	fd      int // a packet socket
	watches []*watch
	closing atomic.Bool    // set by close; run ends then
	closed  chan struct{}  // closed when the goroutine of sniffer.run has ended
	names   map[int]string // of interfaces, by index; used by that goroutine only
}

// watch looks for one packet and its answer. left and arrived are the names of the
// interfaces on which they were seen: with a tunnel, a packet is seen on the tunnel's
// device and on the underlay's. The sniffer's goroutine calls match and writes the rest.
type watch struct {
	match    func(packet) (request, answer bool) // reports what the packet is
	left     []string
	arrived  []string
	answered chan struct{} // made by sniff, closed when the first answer arrived
}

// sniff starts a sniffer for packets from and to these addresses (a few, see filter), ARP
// and ICMP. The caller closes it.
func sniff(addrs []netip.Addr, watches ...*watch) (*sniffer, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0) // receives nothing until it is bound
	if err != nil {
		return nil, fmt.Errorf("open a packet socket: %w", err)
	}
	s := &sniffer{fd: fd, watches: watches, closed: make(chan struct{}), names: map[int]string{}}
	for _, w := range watches {
		w.answered = make(chan struct{})
	}
	raw, err := bpf.Assemble(filter(addrs))
	if err == nil {
		program := make([]unix.SockFilter, len(raw))
		for i, r := range raw {
			program[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
		}
		err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
			&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
	}
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: networkOrder(unix.ETH_P_ALL)})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("filter packets: %w", err), unix.Close(fd))
	}
	go s.run()
	return s, nil
}

// networkOrder swaps the bytes on a little-endian machine.
func networkOrder(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}

// filter returns a program of the kernel's packet filter (BPF) that accepts small packets:
// ARP, ICMP, and from and to addrs. It gets them without the header of the link, so
// that the offsets are those in the IP header: 9 (IPv4) and 6 (IPv6) are of the
// protocol, 12 and 8 of the source address. A SkipFalse counts the instructions up to
// the next alternative. It has 8 bits, which suffice for a dozen addresses.
func filter(addrs []netip.Addr) []bpf.Instruction {
	accept := bpf.RetConstant{Val: maxSniffed}
	var of4, of6 []bpf.Instruction
	ifEqual := func(to *[]bpf.Instruction, load bpf.Instruction, value uint32) {
		*to = append(*to, load, bpf.JumpIf{Cond: bpf.JumpEqual, Val: value, SkipFalse: 1}, accept)
	}
	ifEqual(&of4, bpf.LoadAbsolute{Off: 9, Size: 1}, unix.IPPROTO_ICMP)
	ifEqual(&of6, bpf.LoadAbsolute{Off: 6, Size: 1}, unix.IPPROTO_ICMPV6)
	for _, a := range addrs {
		for _, offset := range []uint32{0, uint32(a.BitLen() / 8)} { // of the source and the destination
			if a.Is4() {
				ifEqual(&of4, bpf.LoadAbsolute{Off: 12 + offset, Size: 4}, binary.BigEndian.Uint32(a.AsSlice()))
				continue
			}
			for word := range uint32(4) {
				of6 = append(of6, bpf.LoadAbsolute{Off: 8 + offset + 4*word, Size: 4},
					bpf.JumpIf{Cond: bpf.JumpEqual, Val: binary.BigEndian.Uint32(a.AsSlice()[4*word:]), SkipFalse: uint8(2*(3-word) + 1)})
			}
			of6 = append(of6, accept)
		}
	}
	refuse := bpf.RetConstant{}
	program := []bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtLen}, bpf.JumpIf{Cond: bpf.JumpLessOrEqual, Val: maxSniffed, SkipTrue: 1}, refuse,
		bpf.LoadExtension{Num: bpf.ExtProto}, bpf.JumpIf{Cond: bpf.JumpEqual, Val: etherARP, SkipFalse: 1}, accept,
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: etherIPv4, SkipFalse: uint8(len(of4) + 1)},
	}
	program = append(append(program, of4...), refuse, bpf.JumpIf{Cond: bpf.JumpEqual, Val: etherIPv6, SkipFalse: uint8(len(of6))})
	return append(append(program, of6...), refuse)
}

// run reads packets until the sniffer is closed, and then those that are there.
func (s *sniffer) run() {
	defer close(s.closed)
	buffer := make([]byte, maxSniffed)
	for {
		last := s.closing.Load() // before the poll, so that what has arrived until close is read
		if _, err := unix.Poll([]unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLIN}}, pollMillis); err != nil && err != unix.EINTR {
			return // the watches see nothing more
		}
		for {
			n, from, err := unix.Recvfrom(s.fd, buffer, unix.MSG_DONTWAIT)
			if err != nil {
				break // there are no more, or an interface went down
			}
			if link, ok := from.(*unix.SockaddrLinklayer); ok {
				s.see(link.Ifindex, packet{buffer[:n], networkOrder(link.Protocol), link.Pkttype == unix.PACKET_OUTGOING})
			}
		}
		if last {
			return
		}
	}
}

// see shows a packet on an interface to all watches.
func (s *sniffer) see(index int, p packet) {
	for _, w := range s.watches {
		switch request, answer := w.match(p); {
		case request && p.outgoing:
			w.left = s.add(w.left, index)
		case answer && !p.outgoing:
			if w.arrived == nil { // the first one
				close(w.answered)
			}
			w.arrived = s.add(w.arrived, index)
		}
	}
}

// add adds the name of an interface to a list, once.
func (s *sniffer) add(list []string, index int) []string {
	name, known := s.names[index]
	if !known {
		name = fmt.Sprintf("interface %d", index)
		if i, err := net.InterfaceByIndex(index); err == nil {
			name = i.Name
		}
		s.names[index] = name
	}
	if slices.Contains(list, name) {
		return list
	}
	return append(list, name)
}

// close ends the sniffer. Then the results of watches may be read.
func (s *sniffer) close() {
	s.closing.Store(true)
	<-s.closed
	_ = unix.Close(s.fd) // nothing was written
}

// test returns what was seen of a packet, whose answer no socket receives. problem is
// why it could not be sent, or "".
func (w *watch) test(problem string) doctor.PathTest {
	t := doctor.PathTest{Result: doctor.Silent, Left: w.left, Arrived: w.arrived}
	if t.Arrived != nil {
		t.Result = doctor.Answered
	} else {
		t.Error = problem
	}
	return t
}

// watchEcho watches for an echo request and its reply, in a tunnel or not.
func watchEcho(t token) *watch {
	return &watch{match: func(p packet) (request, answer bool) {
		i := bytes.Index(p.data, t[:])
		if i < icmpHeader {
			return false, false
		}
		m := p.data[i-icmpHeader:]
		return isRequest(m), isReply(m)
	}}
}

// watchError watches for an echo request, and any answer of the peer that quotes or
// repeats it.
func watchError(t token, peer func(netip.Addr) bool) *watch {
	return &watch{match: func(p packet) (request, answer bool) {
		if !bytes.Contains(p.data, t[:]) {
			return false, false
		}
		src, ok := source(p)
		return true, ok && peer(src)
	}}
}

// watchTCP watches for packets of a connection.
func watchTCP(src, dst netip.AddrPort) *watch {
	request, answer := tcpPattern(src, dst), tcpPattern(dst, src)
	return &watch{match: func(p packet) (bool, bool) {
		return bytes.Contains(p.data, request), bytes.Contains(p.data, answer)
	}}
}

// anyOf watches for what one of the others watches for.
func anyOf(watches []*watch) *watch {
	return &watch{match: func(p packet) (request, answer bool) {
		for _, w := range watches {
			r, a := w.match(p)
			request, answer = request || r, answer || a
		}
		return request, answer
	}}
}
