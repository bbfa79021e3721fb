package charon

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"syscall"
	"time"
)

// Socket is where charon listens by default, as with flannel.
const Socket = "/var/run/charon.vici"

// ErrNotRunning means that no daemon listens on the socket.
var ErrNotRunning = errors.New("strongSwan's charon does not run")

// Types of packets. The client sends requests, and registers for events; the others are answers.
const (
	commandRequest = iota
	commandResponse
	commandUnknown
	eventRegister
	eventUnregister
	eventConfirm
	eventUnknown
	event
)

const (
	// maxPacket is the limit of the protocol in bytes.
	maxPacket = 512 << 10
	// silence is how long an answer, or the next part of one, may take. charon answers
	// some commands only after an exponentiation that is under way.
	silence = 10 * time.Second
)

// Client is a connection to charon for one goroutine at a time. ikeStore of pkg/linux has
// two: one for commands, which the daemon's passes use, and one for Watch. After an error
// other than a Refusal, a Client is to be closed.
type Client struct {
	conn *net.UnixConn
	in   *bufio.Reader
}

// Dial connects to the daemon that listens on a socket.
func Dial(socket string) (*Client, error) {
	conn, err := net.DialTimeout("unix", socket, silence)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return nil, fmt.Errorf("%w: %w", ErrNotRunning, err)
	}
	if err != nil {
		return nil, fmt.Errorf("connect to charon: %w", err)
	}
	return &Client{conn.(*net.UnixConn), bufio.NewReader(conn)}, nil
}

// Close ends the connection.
func (c *Client) Close() error { return c.conn.Close() }

// Refusal is the answer of charon to a command that it did not carry out.
type Refusal struct{ Command, Reason string }

func (r *Refusal) Error() string { return fmt.Sprintf("charon refuses %s: %s", r.Command, r.Reason) }

// call sends a command and returns the answer. If charon does not carry it out, the error is a
// Refusal.
func (c *Client) call(command string, m message) (message, error) {
	return c.exchange(commandRequest, command, m, nil)
}

// stream sends a command whose answer consists of events of that name, and calls each for
// them. It registers for the events while the command runs, and ends the registration also
// if charon refuses the command.
func (c *Client) stream(command, name string, m message, each func(message)) error {
	if _, err := c.exchange(eventRegister, name, nil, nil); err != nil {
		return err
	}
	_, refused := c.exchange(commandRequest, command, m, each)
	if refused != nil && !isRefusal(refused) {
		return refused
	}
	_, err := c.exchange(eventUnregister, name, nil, nil)
	return cmp.Or(err, refused)
}

// exchange sends a packet of this kind (a command, or a registration for an event of that name)
// and reads up to its answer. It calls each, if not nil, for events before that.
func (c *Client) exchange(kind byte, name string, m message, each func(message)) (message, error) {
	if err := c.send(kind, name, m); err != nil {
		return nil, fmt.Errorf("send %s to charon: %w", name, err)
	}
	for {
		if err := c.conn.SetReadDeadline(time.Now().Add(silence)); err != nil {
			return nil, err
		}
		kind, body, err := c.receive()
		if err != nil {
			return nil, fmt.Errorf("charon's answer to %s: %w", name, err)
		}
		switch kind {
		case event:
			if each != nil {
				each(body)
			}
		case commandResponse, eventConfirm: // the latter has an empty body
			if body.text("success") == "no" {
				return nil, &Refusal{name, body.text("errmsg")}
			}
			return body, nil
		case commandUnknown, eventUnknown:
			return nil, &Refusal{name, "it does not know that"}
		}
	}
}

// send sends a packet: its length, its kind, and, for kinds that have them, a name and
// a message.
func (c *Client) send(kind byte, name string, m message) error {
	packet, err := appendName([]byte{0, 0, 0, 0, kind}, name)
	if err == nil {
		packet, err = appendMessage(packet, m)
	}
	if err != nil {
		return err
	}
	if len(packet)-4 > maxPacket {
		return errTooLong
	}
	binary.BigEndian.PutUint32(packet, uint32(len(packet)-4))
	if err := c.conn.SetWriteDeadline(time.Now().Add(silence)); err != nil {
		return err
	}
	_, err = c.conn.Write(packet)
	return err
}

// receive reads a packet. Of an event, it drops the name.
func (c *Client) receive() (kind byte, m message, err error) {
	var length [4]byte
	if _, err := io.ReadFull(c.in, length[:]); err != nil {
		return 0, nil, err
	}
	size := binary.BigEndian.Uint32(length[:])
	if size < 1 || size > maxPacket {
		return 0, nil, errMalformed
	}
	packet := make([]byte, size)
	if _, err := io.ReadFull(c.in, packet); err != nil {
		return 0, nil, err
	}
	d := decoder{packet[1:]}
	if kind = packet[0]; kind == event {
		if _, err := d.name(); err != nil {
			return 0, nil, err
		}
	}
	m, err = d.message(0)
	return kind, m, err
}

// Watch calls notify, on the goroutine of its caller, whenever a security association appears
// or ends. It returns when the connection ends, also by Close, with the reason. Nothing but
// Close may use the Client.
func (c *Client) Watch(notify func()) error {
	for _, name := range []string{"ike-updown", "child-updown"} {
		if _, err := c.exchange(eventRegister, name, nil, func(message) { notify() }); err != nil {
			return err
		}
	}
	if err := c.conn.SetReadDeadline(time.Time{}); err != nil { // events may be rare
		return err
	}
	for {
		if _, _, err := c.receive(); err != nil {
			return err
		}
		notify()
	}
}
