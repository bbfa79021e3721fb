package probe

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"time"
)

// echoInterval is the time after which Echo repeats the request, because a
// packet may be lost.
const echoInterval = 200 * time.Millisecond

// Echo sends ICMP echo requests (RFC 792, RFC 4443) to addr. It returns nil on
// the first reply, and an error if there is none before ctx ends. It needs
// CAP_NET_RAW; on Windows, it needs the rights of an administrator.
func Echo(ctx context.Context, addr netip.Addr) error {
	network, request, reply := "ip4:icmp", byte(8), byte(0)
	if addr.Is6() {
		network, request, reply = "ip6:ipv6-icmp", 128, 129
	}
	// A raw socket. Connected, it receives ICMP messages from addr only, but all of
	// them: also replies to other programs.
	conn, err := (&net.Dialer{}).DialContext(ctx, network, addr.String())
	if err != nil {
		return fmt.Errorf("echo: %w", err)
	}
	defer conn.Close()                                      //nolint:errcheck // nothing is buffered
	stop := context.AfterFunc(ctx, func() { conn.Close() }) // ends a blocked read
	defer stop()
	// Type, code, checksum, identifier, sequence number; then random data, by
	// which the reply is recognized.
	message := make([]byte, 8+16)
	message[0] = request
	binary.BigEndian.PutUint64(message[8:], rand.Uint64())
	binary.BigEndian.PutUint64(message[16:], rand.Uint64())
	if addr.Is4() { // for ICMPv6 the kernel computes the checksum, which includes the addresses
		binary.BigEndian.PutUint16(message[2:], checksum(message))
	}
	buffer := make([]byte, 1500)
	for {
		err := conn.SetReadDeadline(time.Now().Add(echoInterval))
		if err == nil {
			_, err = conn.Write(message)
		}
		if err == nil {
			err = readReply(conn.(*net.IPConn), buffer, reply, message[8:])
		}
		// An error other than the deadline, such as "network is unreachable", stays.
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return errors.New("echo: no reply")
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return fmt.Errorf("echo: %w", err)
		}
	}
}

// readReply reads until the reply with that body arrives. buffer must hold any
// packet.
func readReply(conn *net.IPConn, buffer []byte, reply byte, body []byte) error {
	for {
		n, _, err := conn.ReadFromIP(buffer) // in contrast to Read, it removes an IPv4 header
		switch {
		case err != nil:
			return err
		case n == 8+len(body) && buffer[0] == reply && bytes.Equal(buffer[8:n], body):
			return nil
		}
	}
}

// checksum returns the Internet checksum (RFC 1071) of an even number of bytes.
func checksum(b []byte) uint16 {
	var sum uint32
	for ; len(b) > 0; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
