package udptunnel

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"golang.org/x/time/rate"
	"golang.zx2c4.com/wireguard/tun"
)

// Options of a Tunnel. They are comparable.
type Options struct {
	Device   string         // name of the TUN device, which Open creates if there is none
	Local    netip.AddrPort // from which datagrams are sent, and which receives them; IPv4
	Source   netip.Addr     // of ICMP errors: the address of the device
	Peers    *Peers         // belongs to the caller, who may change it at any time
	Counters *Counters      // likewise
}

// Tunnel forwards packets between a TUN device and a UDP socket, in two goroutines.
// Everything else about the device (address, MTU, routes) belongs to the caller.
type Tunnel struct {
	options Options
	device  tun.Device
	socket  *socket
	answers *rate.Limiter // of ICMP errors
	done    chan struct{}
	err     error // why it ended; set before done is closed
}

// As in Linux, net.ipv4.icmp_msgs_per_sec and icmp_msgs_burst.
const answersPerSecond, answersBurst = 1000, 50

// Open attaches to the device, opens the socket in the network namespace of the
// calling thread, and starts to forward.
func Open(o Options) (*Tunnel, error) {
	socket, err := openSocket(o.Local)
	if err != nil {
		return nil, err
	}
	device, err := openDevice(o.Device)
	if err != nil {
		return nil, errors.Join(err, socket.Close())
	}
	t := &Tunnel{options: o, device: device, socket: socket, answers: rate.NewLimiter(answersPerSecond, answersBurst), done: make(chan struct{})}
	var loops sync.WaitGroup
	ends := make(chan error, 2)
	for _, loop := range []func() error{newSender(t).run, newReceiver(t).run} {
		loops.Go(func() {
			ends <- loop()
			_ = errors.Join(device.Close(), socket.Close()) // ends the other one
		})
	}
	go func() {
		loops.Wait()
		t.err = <-ends
		close(t.done)
	}()
	return t, nil
}

// Options returns those that Open got.
func (t *Tunnel) Options() Options { return t.options }

// Done is closed when the tunnel has ended: after Close, or because the device was
// deleted.
func (t *Tunnel) Done() <-chan struct{} { return t.done }

// Err returns why the tunnel ended. Call it after Done is closed.
func (t *Tunnel) Err() error { return t.err }

// Close ends the tunnel. The device stays.
func (t *Tunnel) Close() error {
	err := errors.Join(t.device.Close(), t.socket.Close())
	<-t.done
	return err
}

// Destroy ends the tunnel and deletes the device, whatever its name is by now.
func (t *Tunnel) Destroy() error {
	return errors.Join(forget(t.device), t.Close())
}

// answer makes an ICMP error about p in b; nil: none may be sent, or there were too
// many.
func (t *Tunnel) answer(b []byte, p packet, a answer) packet {
	if !t.answers.Allow() {
		return nil
	}
	return answerTo(b, p, a, number(t.options.Source))
}

func (t *Tunnel) drop(d Drop) { t.options.Counters.drop(d) }

// writeDevice hands packets to the kernel, each with room bytes before it.
func (t *Tunnel) writeDevice(packets [][]byte) error {
	_, err := t.device.Write(packets, room)
	if err == nil {
		return nil
	}
	if isFatal(err) {
		return fmt.Errorf("write to the device: %w", err)
	}
	t.drop(Failed)
	return nil
}

// room is for the header of virtio, which the device puts before a packet.
const room = 16
