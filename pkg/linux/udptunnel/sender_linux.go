package udptunnel

import (
	"fmt"
)

// sender reads packets from the device and sends them to peers, in one of the two
// goroutines of its Tunnel.
type sender struct {
	*Tunnel
	find    finder   // finds the peer that has the destination of a packet
	packets [][]byte // buffers for one read, which may return many packets of one flow
	sizes   []int    // of the packets that were read
	reply   []byte   // buffer for ICMP errors
}

// newSender returns the sender with all its buffers.
func newSender(t *Tunnel) *sender {
	s := &sender{Tunnel: t, find: finder{peers: t.options.Peers}, reply: make([]byte, room, room+maxAnswer)}
	s.packets, s.sizes = buffers(t.device.BatchSize(), 0), make([]int, t.device.BatchSize())
	return s
}

// buffers returns n buffers for packets of any length, of 64 KiB each, with space bytes before them.
func buffers(n, space int) [][]byte {
	all := make([][]byte, n)
	for i := range all {
		all[i] = make([]byte, space+maxDatagram+1) // the kernel provides pages when they are used
	}
	return all
}

// run forwards until the tunnel is closed or the device is gone, and returns that as an error.
func (s *sender) run() error {
	for {
		n, err := s.device.Read(s.packets, s.sizes, 0)
		if err != nil && isFatal(err) {
			return fmt.Errorf("read from the device: %w", err)
		}
		if err != nil { // the rest of a flow's packets did not fit, or they cannot be split; n packets are there
			s.drop(dropFailed)
		}
		s.find.refresh() // use the latest table of peers
		packets, bytes := 0, 0
		for i := range n {
			p := parse(s.packets[i][:s.sizes[i]])
			if p == nil {
				continue // IPv6, which the kernel sends through every device
			}
			sent, err := s.forward(p)
			if err != nil {
				return err
			}
			if sent { // also what the kernel refuses later: flush counts that as dropped, too
				packets, bytes = packets+1, bytes+len(p)
			}
		}
		if err := s.flush(); err != nil {
			return err
		}
		s.options.Counters.sent.add(packets, bytes)
	}
}

// forward queues a packet for its peer, or drops it with an ICMP error to its source. sent is
// false if it was dropped. The error means that device or socket is closed, or the device gone, as
// that of refuse and flush, and ends run.
func (s *sender) forward(p packet) (sent bool, err error) {
	peer := s.find.find(p.dest())
	switch {
	case peer == nil:
		s.drop(dropUnreachable)
		return false, s.refuse(p, networkUnreachable)
	case !p.decrementTTL():
		s.drop(dropExpired)
		return false, s.refuse(p, timeExceeded)
	}
	if s.socket.add(p, peer.addr) { // the queue is full
		return true, s.flush()
	}
	return true, nil
}

// refuse sends an ICMP error to the source of a packet of this node: into the device, from which the
// kernel routes it to the pod.
func (s *sender) refuse(p packet, a answer) error {
	if reply := s.answer(s.reply, p, a); reply != nil {
		_, err := s.writeDevice([][]byte{reply})
		return err
	}
	return nil
}

// flush sends what is queued. The packets of a read stay in their buffers until then.
func (s *sender) flush() error {
	failed, err := s.socket.flush()
	s.options.Counters.dropped[dropFailed].Add(uint64(failed))
	if err != nil {
		return fmt.Errorf("send: %w", err)
	}
	return nil
}
