package extension

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// patience is far more than anything here takes on a busy machine.
const patience = 5 * time.Minute

// addressFile has the address that the processes of the role hang dial.
func addressFile(dir string) string { return filepath.Join(dir, "address") }

// listen returns the connections of the processes that run in the role hang with this directory. A test knows a process
// by its connection, because another program may get the PID of one that has ended. A process ends when the test closes
// its connection, at the latest when the test ends.
func listen(t *testing.T, dir string) <-chan net.Conn {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	if err := os.WriteFile(addressFile(dir), []byte(l.Addr().String()), 0o600); err != nil {
		t.Fatal(err)
	}
	accepted := make(chan net.Conn)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // the test has ended
			}
			t.Cleanup(func() { c.Close() })
			select {
			case accepted <- c:
			case <-t.Context().Done():
			}
		}
	}()
	return accepted
}

// hang is the role of a process that does not end by itself. It returns what the test sends, as proof that it runs.
func hang(dir string) int {
	address, err := os.ReadFile(addressFile(dir))
	if err != nil {
		return 9
	}
	c, err := net.Dial("tcp", string(address))
	if err != nil {
		return 9
	}
	fmt.Println("hangs")
	_, _ = io.Copy(c, c)
	return 0
}

// runs reports whether the process at the other end of a connection runs.
func runs(t *testing.T, c net.Conn) bool {
	t.Helper()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("?")); err != nil {
		return false
	}
	_, err := io.ReadFull(c, make([]byte, 1))
	return err == nil
}

// mustEnd waits until the process at the other end of a connection has ended.
func mustEnd(t *testing.T, c net.Conn) {
	t.Helper()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 1)); n > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal("what a command has started is left")
	}
}
