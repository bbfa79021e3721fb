package wine

import (
	"bufio"
	"errors"
	"net"

	"flannel/pkg/hns/hnstest"
	"flannel/pkg/hns/hnstest/api"
)

// Server lets the DLLs, and Dial, reach a machine.
type Server struct {
	Machine *hnstest.Machine
	// More are calls that Windows does not have. Their errors reach the caller as text.
	More map[string]func(args [][]byte) ([]byte, error)
}

// program makes calls on a machine.
type program struct {
	*hnstest.Program
	machine *hnstest.Machine
}

// Serve answers until the listener is closed, and then waits for nobody.
func (s *Server) Serve(l net.Listener) error {
	p := program{s.Machine.Begin(), s.Machine}
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		// A connection each, so that a call that hangs delays no other.
		go s.serve(c, p)
	}
}

func (s *Server) serve(c net.Conn, p program) {
	defer c.Close()
	r := bufio.NewReader(c)
	for {
		fields, err := readFrame(r)
		if err != nil || len(fields) == 0 {
			return
		}
		there, answered := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(there)
			_, err := r.Peek(1) // the next request, or the end
			select {
			case <-answered:
			default:
				// The program ended while it waited for what it registered for.
				if err != nil && string(fields[0]) == "Wait" && len(fields) == 2 {
					p.Abandon(string(fields[1]))
				}
			}
		}()
		answer := s.answer(p, string(fields[0]), fields[1:])
		close(answered)
		if err := writeFrame(c, answer...); err != nil {
			return
		}
		<-there
	}
}

func (s *Server) answer(p program, function string, args [][]byte) [][]byte {
	if more := s.More[function]; more != nil {
		answer, err := more(args)
		if err != nil {
			return [][]byte{pack(uint32(api.InvalidArg)), nil, []byte(err.Error())}
		}
		return [][]byte{pack(uint32(0)), answer, nil}
	}
	switch {
	case function == "Wait" && len(args) == 1:
		event, code := p.Next(string(args[0]))
		return [][]byte{pack(uint32(code)), []byte(event), nil}
	case api.IsHNS(function):
		texts := make([]string, len(args))
		for i, arg := range args {
			texts[i] = string(arg)
		}
		out, code := p.HNS(function, texts...)
		return [][]byte{pack(uint32(code)), []byte(out), []byte(api.Record(code))}
	}
	out, code := p.ipHelper(function, args)
	if out == nil {
		out = &blob{}
	}
	return [][]byte{pack(uint32(code)), out.bytes, pack(out.pointers)}
}
