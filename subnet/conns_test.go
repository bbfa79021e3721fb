package subnet

import (
	"net"
	"testing"
	"time"
)

// Connections that fail for the same reason have the same error, whatever their local ports.
// The reason here is a deadline that has passed: it does not depend on what the peer's side
// of the connection has done by then, as a reset does.
func TestErrorsOfConnections(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	errorsOf := func() (read, write string) {
		raw, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		conn := new(Conns).Keep(raw)
		defer conn.Close()
		if err := conn.SetDeadline(time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
		_, readErr := conn.Read(make([]byte, 1))
		_, writeErr := conn.Write(make([]byte, 1))
		if readErr == nil || writeErr == nil {
			t.Fatalf("read: %v, write: %v", readErr, writeErr)
		}
		return readErr.Error(), writeErr.Error()
	}
	read1, write1 := errorsOf()
	read2, write2 := errorsOf()
	if read1 != read2 || write1 != write2 {
		t.Errorf("%s, then %s; %s, then %s", read1, read2, write1, write2)
	}
}
