package udptunnel

import (
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

// receiver receives datagrams from peers and hands their packets to the kernel, in
// one of the two goroutines of its Tunnel.
type receiver struct {
	*Tunnel
	find     finder         // finds the peer that has the source of a packet
	messages []ipv4.Message // buffers for one read from the socket
	packets  [][]byte       // buffers for the device, which puts packets of one flow together; each begins with room bytes for it
	used     int            // number of packets that are queued
	reply    []byte         // buffer for ICMP errors
}

// maxReceived bounds the messages of one system call. Each can have 64 KiB, of many datagrams (UDP_GRO).
const maxReceived = 8

// failurePause limits the CPU time that a socket costs which fails again and again.
const failurePause = 10 * time.Millisecond

// newReceiver returns the receiver with all its buffers.
func newReceiver(t *Tunnel) *receiver {
	r := &receiver{Tunnel: t, find: finder{peers: t.options.Peers}, messages: make([]ipv4.Message, maxReceived), reply: make([]byte, 0, maxAnswer)}
	for i := range r.messages {
		// OOB is for the size of datagrams that come together, an int (see segmentSize).
		r.messages[i].Buffers, r.messages[i].OOB = [][]byte{make([]byte, maxDatagram)}, make([]byte, unix.CmsgSpace(4))
	}
	r.packets = buffers(t.device.BatchSize(), room)
	return r
}

// run forwards until the tunnel is closed or the device is gone, and returns that as an error.
func (r *receiver) run() error {
	for {
		n, err := r.socket.batch.ReadBatch(r.messages, 0)
		if errors.Is(err, net.ErrClosed) {
			return fmt.Errorf("receive: %w", err)
		}
		if err != nil { // such as that of a network that is down: it may pass
			r.drop(dropFailed)
			time.Sleep(failurePause)
			continue
		}
		r.find.refresh()
		for i := range n {
			if err := r.split(&r.messages[i]); err != nil {
				return err
			}
		}
		if err := r.flush(); err != nil {
			return err
		}
	}
}

// split takes the datagrams of a message apart, and calls accept for each. The error means that the
// device is closed or gone, as that of accept and flush.
func (r *receiver) split(m *ipv4.Message) error {
	from, ok := m.Addr.(*net.UDPAddr)
	if !ok { // without a sender, it is nobody's packet
		return nil
	}
	sender := sender4(from)
	rest, size := m.Buffers[0][:m.N], segmentSize(m.OOB[:m.NN])
	if size == 0 { // one datagram
		size = max(len(rest), 1)
	}
	for first := true; len(rest) > 0 || first; first = false { // an empty datagram is one, too, to be counted as malformed
		datagram := rest[:min(size, len(rest))]
		rest = rest[len(datagram):]
		if err := r.accept(datagram, sender); err != nil {
			return err
		}
	}
	return nil
}

// endpoint is a sender of datagrams.
type endpoint struct {
	ip   uint32
	port uint16
}

// sender4 returns the sender of a datagram.
func sender4(a *net.UDPAddr) endpoint {
	addr := a.AddrPort()
	return endpoint{number(addr.Addr().Unmap()), addr.Port()}
}

// accept checks a datagram, and queues its packet for the kernel, or drops and counts it. The sender
// must be the peer that has the source of the packet: then nobody else can send as that peer's pods.
func (r *receiver) accept(datagram []byte, from endpoint) error {
	p := parse(datagram)
	if p == nil {
		r.drop(dropMalformed)
		return nil
	}
	peer := r.find.find(p.source())
	if peer == nil || peer.via != from.ip || peer.port != from.port {
		r.drop(dropForeign)
		return nil
	}
	if !p.decrementTTL() {
		r.drop(dropExpired)
		// To the peer, and not into the kernel: one of its pods has sent the packet.
		if reply := r.answer(r.reply, p, timeExceeded); reply != nil {
			if _, err := r.socket.WriteTo(reply, peer.addr); err != nil {
				r.drop(dropFailed)
			}
		}
		return nil
	}
	r.packets[r.used] = append(r.packets[r.used][:room], p...)
	if r.used++; r.used == len(r.packets) {
		return r.flush()
	}
	return nil
}

// flush hands the queued packets to the kernel, which they then enter from the device.
func (r *receiver) flush() error {
	packets, bytes := r.packets[:r.used], 0
	for _, p := range packets {
		bytes += len(p) - room
	}
	if r.used = 0; len(packets) == 0 {
		return nil
	}
	refused, err := r.writeDevice(packets)
	if !refused {
		r.options.Counters.received.add(len(packets), bytes)
	}
	return err
}
