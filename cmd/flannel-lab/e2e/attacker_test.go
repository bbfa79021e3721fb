package e2e

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/machine"
)

// sniffer reads all frames that pass the underlay.
type sniffer struct {
	l         *lab.Lab
	secret    []byte
	seen, end atomic.Int64
}

// endMark is what flush sends.
var endMark = []byte("this datagram is the last")

// sniff counts frames that contain the secret.
func sniff(t *testing.T, l *lab.Lab, secret string) *sniffer {
	t.Helper()
	s := &sniffer{l: l, secret: []byte(secret)}
	fd := -1
	must(t, l.Infra.Do(func() (err error) {
		all := uint16(unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8) // in network byte order
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(all))
		return err
	}))
	must(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20))
	must(t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}))
	stop, stopped := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(stop); <-stopped; unix.Close(fd) })
	go func() {
		defer close(stopped)
		for buf := make([]byte, 1<<16); ; {
			select {
			case <-stop:
				return
			default:
			}
			n, _, err := unix.Recvfrom(fd, buf, 0)
			if err != nil {
				continue
			}
			if bytes.Contains(buf[:n], s.secret) {
				s.seen.Add(1)
			}
			if bytes.Contains(buf[:n], endMark) {
				s.end.Add(1)
			}
		}
	}()
	return s
}

// count returns how many frames with the secret passed before the call.
func (s *sniffer) count(t *testing.T) int64 {
	t.Helper()
	before := s.end.Load()
	c, err := dialFrom(s.l.Nodes[0].Namespaces, netip.Addr{}, netip.AddrPortFrom(s.l.Nodes[1].IP4, 9))
	must(t, err)
	defer c.Close()
	within(t, "the last datagram passes", func() error {
		if s.end.Load() > before {
			return nil
		}
		_, _ = c.Write(endMark) // nobody listens there: an error is the answer to the one before
		return errors.New("it does not")
	})
	return s.seen.Load()
}

// inbox counts the datagrams that arrive at a pod, by their payload.
type inbox struct {
	at   netip.AddrPort
	got  chan string
	from chan netip.Addr
}

func newInbox(t *testing.T, p *lab.Pod) *inbox {
	t.Helper()
	var c *net.UDPConn
	must(t, p.Do(func() (err error) { c, err = net.ListenUDP("udp4", nil); return err }))
	t.Cleanup(func() { c.Close() })
	i := &inbox{at: netip.AddrPortFrom(p.IP4, uint16(c.LocalAddr().(*net.UDPAddr).Port)), got: make(chan string, 100), from: make(chan netip.Addr, 100)}
	go func() {
		for buf := make([]byte, 2048); ; {
			n, from, err := c.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			i.got <- string(buf[:n])
			i.from <- from.Addr().Unmap()
		}
	}()
	return i
}

// next returns the next payload and its sender.
func (i *inbox) next(t *testing.T) (payload string, from netip.Addr) {
	t.Helper()
	within(t, "a datagram arrives", func() error {
		select {
		case payload = <-i.got:
			from = <-i.from
			return nil
		default:
			return errors.New("none has")
		}
	})
	return payload, from
}

// arrives reports whether what send sends arrives. The honest datagram that a pod sends
// after it takes the same way.
func (i *inbox) arrives(t *testing.T, honest *lab.Pod, send func() error) bool {
	t.Helper()
	const last = "honest"
	must(t, send())
	c, err := dialFrom(honest.Namespaces, honest.IP4, i.at)
	must(t, err)
	defer c.Close()
	_, err = c.Write([]byte(last))
	must(t, err)
	first, _ := i.next(t)
	if first == last {
		return false
	}
	if second, _ := i.next(t); second != last {
		t.Fatalf("received %q and %q", first, second)
	}
	return true
}

// sendRaw sends a packet with the header that it has.
func sendRaw(ns machine.Namespaces, packet []byte) error {
	return ns.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, packet, 0, &unix.SockaddrInet4{Addr: [4]byte(packet[16:20])})
	})
}
