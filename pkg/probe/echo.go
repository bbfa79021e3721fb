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

// echoAgain is the pause after which Echo asks again: a single packet may be lost.
const echoAgain = 200 * time.Millisecond

// Echo asks addr for an answer by ICMP (RFC 792, RFC 4443), again and again, and returns nil when it comes before ctx
// ends. It takes CAP_NET_RAW, on Windows an administrator.
func Echo(ctx context.Context, addr netip.Addr) error {
	network, request, reply := "ip4:icmp", byte(8), byte(0)
	if addr.Is6() {
		network, request, reply = "ip6:ipv6-icmp", 128, 129
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, network, addr.String())
	if err != nil {
		return fmt.Errorf("echo: %w", err)
	}
	defer conn.Close() //nolint:errcheck // nothing is buffered
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	message := make([]byte, 8+16) // type, code, checksum, identifier, sequence; then what tells our answer from others'
	message[0] = request
	binary.BigEndian.PutUint64(message[8:], rand.Uint64())
	binary.BigEndian.PutUint64(message[16:], rand.Uint64())
	if addr.Is4() { // of ICMPv6 it is the kernel that knows the addresses in the checksum
		binary.BigEndian.PutUint16(message[2:], checksum(message))
	}
	answer := make([]byte, 1500)
	for {
		err := conn.SetReadDeadline(time.Now().Add(echoAgain))
		if err == nil {
			_, err = conn.Write(message)
		}
		if err == nil {
			err = await(conn.(*net.IPConn), answer, reply, message[8:])
		}
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return errors.New("echo: no answer")
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return fmt.Errorf("echo: %w", err)
		}
	}
}

// await reads until an answer with that body comes.
func await(conn *net.IPConn, answer []byte, reply byte, body []byte) error {
	for {
		// Read would leave an IPv4 header before the message.
		n, _, err := conn.ReadFromIP(answer)
		switch {
		case err != nil:
			return err
		case n == 8+len(body) && answer[0] == reply && bytes.Equal(answer[8:n], body):
			return nil
		}
	}
}

// checksum is that of RFC 1071, of an even number of bytes.
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
