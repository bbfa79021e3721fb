package wine

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"

	"flannel/pkg/windows/hns"
)

// Conn connects to a machine in another process, as a program on that machine.
type Conn struct {
	mu   sync.Mutex
	conn net.Conn
}

// Dial connects to the TCP address of a Server. The caller must call Close.
func Dial(address string) (*Conn, error) {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("connect to the simulated machine: %w", err)
	}
	return &Conn{conn: c}, nil
}

// Close closes the connection, which ends the program, but not the machine.
func (c *Conn) Close() error { return c.conn.Close() }

// Call makes a call of HNS, or one of Server.More, and returns its answer,
// which is a handle for Create and Open.
func (c *Conn) Call(function string, args ...string) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fields := [][]byte{nil, []byte(function)}
	for _, arg := range args {
		fields = append(fields, []byte(arg))
	}
	if err := writeFrame(c.conn, fields...); err != nil {
		return "", err
	}
	answer, err := readFrame(c.conn)
	if err != nil {
		return "", err
	}
	if len(answer) != 3 || len(answer[0]) != 4 {
		return "", io.ErrUnexpectedEOF
	}
	if code := hns.Code(binary.LittleEndian.Uint32(answer[0])); code != 0 {
		return "", &hns.Error{Call: function, Code: code, Detail: string(answer[2])}
	}
	return string(answer[1]), nil
}
