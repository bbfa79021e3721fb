package patience

import (
	"net"
	"testing"
)

// Connections that end for the same reason have the same error, whatever their local ports.
func TestErrorsOfConnections(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	resetErrors := func() (read, write string) {
		raw, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		conn := new(Conns).Keep(raw)
		defer conn.Close()
		peer, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if err := peer.(*net.TCPConn).SetLinger(0); err != nil { // so that Close sends a reset
			t.Fatal(err)
		}
		peer.Close()
		_, readErr := conn.Read(make([]byte, 1))
		_, writeErr := conn.Write(make([]byte, 1))
		if readErr == nil || writeErr == nil {
			t.Fatalf("read: %v, write: %v", readErr, writeErr)
		}
		return readErr.Error(), writeErr.Error()
	}
	read1, write1 := resetErrors()
	read2, write2 := resetErrors()
	if read1 != read2 || write1 != write2 {
		t.Errorf("%s, then %s; %s, then %s", read1, read2, write1, write2)
	}
}
