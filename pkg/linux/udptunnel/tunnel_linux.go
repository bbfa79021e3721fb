package udptunnel

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"golang.org/x/time/rate"
	"golang.zx2c4.com/wireguard/tun"
)

// Options of a Tunnel. They are comparable.
type Options struct {
	Device   string         // name of the TUN device, which Open creates if there is none
	Local    netip.AddrPort // from which datagrams are sent, and which receives them; IPv4
	Source   netip.Addr     // of ICMP errors: the address of the device; IPv4
	Peers    *Peers         // belongs to the caller, who may change it at any time
	Counters *Counters      // belong to the caller, likewise: they outlast the Tunnel
}

// Tunnel forwards packets between a TUN device and a UDP socket, in two goroutines: a
// sender and a receiver. The kind tun of the Linux driver opens it, and calls its
// exported methods, from the daemon's loop. Everything else about the device (address, MTU,
// routes) belongs to the caller. The unexported methods are for the two goroutines.
type Tunnel struct {
	options Options
	device  tun.Device    // of WireGuard's library, which lets both goroutines write at the same time
	socket  *socket       // to the peers
	answers *rate.Limiter // of ICMP errors, in both directions

	starting, shutting sync.Once     // of Start and shutDown, which may be called again
	started, shut      chan struct{} // closed by Start and shutDown
	shutErr            error         // of closing device and socket; set before shut is closed

	done chan struct{} // closed when both goroutines have ended
	err  error         // why the tunnel ended; set before done is closed
}

// The limits of ICMP errors are those of Linux, net.ipv4.icmp_msgs_per_sec and icmp_msgs_burst.
const answersPerSecond, answersBurst = 1000, 50

// Open attaches to the device, and opens the socket in the network namespace of the
// calling thread. Until Start, the kernel queues packets and datagrams. Its errors are for an
// operator, such as ErrBusy; then it leaves nothing open. The caller closes the Tunnel, also if
// it ends by itself.
func Open(o Options) (*Tunnel, error) {
	socket, err := openSocket(o.Local)
	if err != nil {
		return nil, err
	}
	device, err := openDevice(o.Device)
	if err != nil {
		return nil, errors.Join(err, socket.Close())
	}
	t := &Tunnel{options: o, device: device, socket: socket, answers: rate.NewLimiter(answersPerSecond, answersBurst),
		started: make(chan struct{}), shut: make(chan struct{}), done: make(chan struct{})}
	var loops sync.WaitGroup
	ends := make(chan error, 2)
	for _, loop := range []func() error{newSender(t).run, newReceiver(t).run} {
		loops.Go(func() {
			ends <- t.afterStart(loop)
			t.shutDown() // ends the other one
		})
	}
	go func() {
		loops.Wait()
		t.err = <-ends // the first; that of the other loop is a consequence
		close(t.done)
	}()
	return t, nil
}

// Start starts to forward. The caller calls it when Peers is complete: a tunnel that
// does not know the peers yet would drop their packets as foreign, and answer packets
// to them with ICMP errors. Further calls do nothing.
func (t *Tunnel) Start() { t.starting.Do(func() { close(t.started) }) }

// afterStart waits for Start, and runs one of the loops until it ends, unless the tunnel is
// closed before it is started. It returns why the loop has ended.
func (t *Tunnel) afterStart(loop func() error) error {
	select {
	case <-t.started:
		return loop()
	case <-t.shut:
		return net.ErrClosed
	}
}

// shutDown closes the device and the socket.
func (t *Tunnel) shutDown() {
	t.shutting.Do(func() {
		t.shutErr = errors.Join(t.device.Close(), t.socket.Close())
		close(t.shut)
	})
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
	t.shutDown()
	<-t.done
	return t.shutErr
}

// Destroy ends the tunnel and deletes the device, whatever its name is by now. It returns an
// error if the tunnel has ended before, because it cannot reach the device any more.
func (t *Tunnel) Destroy() error {
	return errors.Join(forget(t.device), t.Close())
}

// Attached reports whether the device that the tunnel forwards for still has its name. Otherwise, it
// was renamed or deleted, and a device with that name is another one.
func (t *Tunnel) Attached() bool {
	name, err := deviceName(t.device)
	return err == nil && name == t.options.Device
}

// answer appends an ICMP error about p to b; nil: none may be sent, or there were too
// many.
func (t *Tunnel) answer(b []byte, p packet, a answer) packet {
	if !t.answers.Allow() {
		return nil
	}
	return answerTo(b, p, a, number(t.options.Source))
}

// drop counts a packet that is not forwarded.
func (t *Tunnel) drop(d dropReason) { t.options.Counters.drop(d) }

// writeDevice hands packets to the kernel, each with room bytes before it. refused
// means that the kernel took none, or not all: all are then counted as failed, because the
// device puts packets of one flow together. The error means that the device is closed or
// gone, and ends the loop of the caller.
func (t *Tunnel) writeDevice(packets [][]byte) (refused bool, err error) {
	_, err = t.device.Write(packets, room)
	if err == nil {
		return false, nil
	}
	if isFatal(err) {
		return true, fmt.Errorf("write to the device: %w", err)
	}
	t.options.Counters.dropped[dropFailed].Add(uint64(len(packets)))
	return true, nil
}

// room is the number of bytes before each packet into which the device puts a header of virtio, of 10 bytes.
const room = 16
