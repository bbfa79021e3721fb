// Package vicitest answers, in the place of charon, what programs send to a socket of VICI.
package vicitest

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"
)

// Serve accepts connections at path until the test ends. For each packet, of a kind, with a name and a message,
// answer returns the packets to send, without their lengths. After that, ends closes the connection.
func Serve(t testing.TB, path string, answer func(kind byte, name string, message []byte) (packets []string, ends bool)) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			all.Go(func() {
				defer conn.Close()
				for ends := false; !ends; {
					var length [4]byte
					if _, err := io.ReadFull(conn, length[:]); err != nil {
						return
					}
					packet := make([]byte, binary.BigEndian.Uint32(length[:]))
					if _, err := io.ReadFull(conn, packet); err != nil {
						return
					}
					var packets []string
					packets, ends = answer(packet[0], string(packet[2:2+packet[1]]), packet[2+packet[1]:])
					for _, p := range packets {
						_, _ = conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(p))), p...))
					}
				}
			})
		}
	})
	t.Cleanup(func() { l.Close(); all.Wait() })
}
