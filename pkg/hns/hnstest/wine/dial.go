package wine

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"

	"flannel/pkg/hns"
)

// Conn is a program on a machine in another process.
type Conn struct {
	mu   sync.Mutex
	conn net.Conn
}

// Dial connects to a machine that is served at an address. Close ends it.
func Dial(address string) (*Conn, error) {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("reach the simulated machine: %w", err)
	}
	return &Conn{conn: c}, nil
}

// Close ends the connection; the machine goes on.
func (c *Conn) Close() error { return c.conn.Close() }

// Call makes a call of HNS as a program on the machine would, or one of Server.More, and returns its answer: that of
// Create is a handle.
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
