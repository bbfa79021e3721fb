// This file sends echo requests (pings) on every system, with package net: Echo is for
// the daemon's trial of a new configuration. The message formats are also those of Socket
// (socket_linux.go), which the daemon's Prober uses. The doctor's tests have a way of
// their own, echoes (echo_linux.go).

package path

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

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// echoInterval is the time after which Echo repeats the request, because a
// packet may be lost.
const echoInterval = 200 * time.Millisecond

// Echo sends ICMP echo requests (RFC 792, RFC 4443) from an address of this host
// to another one. It returns nil on the first reply, and an error if there is
// none before ctx ends. A zero from leaves the source to the system. Echo needs
// CAP_NET_RAW; on Windows, it needs the rights of an administrator.
func Echo(ctx context.Context, from, addr netip.Addr) error {
	network, reply := "ip4:icmp", byte(reply4)
	if addr.Is6() {
		network, reply = "ip6:ipv6-icmp", reply6
	}
	// A raw socket. Connected, it receives ICMP messages from addr only, but all of
	// them: also replies to other programs.
	var dialer net.Dialer
	if from.IsValid() {
		dialer.LocalAddr = &net.IPAddr{IP: from.AsSlice(), Zone: from.Zone()}
	}
	conn, err := dialer.DialContext(ctx, network, addr.String())
	if err != nil {
		return fmt.Errorf("echo: %w", err)
	}
	defer conn.Close()                                      //nolint:errcheck // nothing is buffered
	stop := context.AfterFunc(ctx, func() { conn.Close() }) // ends a blocked read
	defer stop()
	message := echoMessage(addr.Is6(), randomBody()) // by which the reply is recognized
	buffer := make([]byte, 1500)                     // a longer message is cut off, and is not the reply
	for {
		err := conn.SetReadDeadline(time.Now().Add(echoInterval))
		if err == nil {
			_, err = conn.Write(message)
		}
		if err == nil {
			err = readReply(conn.(*net.IPConn), buffer, reply, message[headerLen:]) // a network ip4:… or ip6:… has this type
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

// Types of ICMP and ICMPv6 messages: echo request, echo reply, and time exceeded.
const (
	request4, reply4, exceeded4 = 8, 0, 11
	request6, reply6, exceeded6 = 128, 129, 3
)

const headerLen = 8 // type, code, checksum, identifier, sequence number

// echoMessage returns a message with identifier and sequence number 0: a request is
// recognized by its body. For ICMPv6 the kernel computes the checksum, which includes the
// addresses.
func echoMessage(v6 bool, body []byte) []byte {
	m := icmp.Message{Type: ipv4.ICMPTypeEcho, Body: &icmp.Echo{Data: body}}
	if v6 {
		m.Type = ipv6.ICMPTypeEchoRequest
	}
	b, _ := m.Marshal(nil) // it only fails with other types and bodies
	return b
}

// randomBody returns 16 bytes that no other program sends.
func randomBody() []byte {
	body := binary.BigEndian.AppendUint64(nil, rand.Uint64())
	return binary.BigEndian.AppendUint64(body, rand.Uint64())
}

// readReply reads until the reply with that body arrives. buffer must be longer than the
// reply. The error is that of reading, such as the deadline of conn.
func readReply(conn *net.IPConn, buffer []byte, reply byte, body []byte) error {
	for {
		n, _, err := conn.ReadFromIP(buffer) // in contrast to Read, it removes an IPv4 header
		switch {
		case err != nil:
			return err
		case n == headerLen+len(body) && buffer[0] == reply && bytes.Equal(buffer[headerLen:n], body):
			return nil
		}
	}
}
