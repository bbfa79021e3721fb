package wine

import (
	"bufio"
	"errors"
	"net"
	"sync"

	"flannel/pkg/hns/hnstest"
	"flannel/pkg/hns/hnstest/api"
)

// Server lets the DLLs, and Dial, reach a machine.
type Server struct {
	Machine *hnstest.Machine
	// More are calls that Windows does not have. Their errors reach the caller as text.
	More map[string]func(args [][]byte) ([]byte, error)

	mu       sync.Mutex
	programs map[string]program // those that other connections may name, by what they are called
}

// program makes calls on a machine.
type program struct {
	*hnstest.Program
	machine *hnstest.Machine
	conn    net.Conn // ends with the program
}

// Serve answers until the listener is closed. It then ends the programs, and waits for nobody.
func (s *Server) Serve(l net.Listener) error {
	defer s.endAll()
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		// A connection each, so that a call that hangs delays no other.
		go s.serve(c)
	}
}

func (s *Server) serve(c net.Conn) {
	defer c.Close()
	own := program{s.Machine.Begin(), s.Machine, c}
	defer own.End()
	r := bufio.NewReader(c)
	for {
		fields, err := readFrame(r)
		if err != nil || len(fields) < 2 {
			return
		}
		name, function := string(fields[0]), string(fields[1])
		if function == "Program" {
			name = s.join(own)
			defer s.leave(name)
			err = writeFrame(c, pack(uint32(0)), []byte(name), nil)
		} else if p, known := s.program(name, own); known {
			err = writeFrame(c, s.answer(p, function, fields[2:])...)
		} else {
			return // the program has ended
		}
		if err != nil {
			return
		}
	}
}

// join makes a connection's program known to others, and returns what it is called.
func (s *Server) join(p program) (name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.programs == nil {
		s.programs = map[string]program{}
	}
	name = p.conn.RemoteAddr().String()
	s.programs[name] = p
	return name
}

func (s *Server) leave(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.programs, name)
}

// program is the one that a request names, or else its connection's own.
func (s *Server) program(name string, own program) (p program, known bool) {
	if name == "" {
		return own, true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p, known = s.programs[name]
	return p, known
}

func (s *Server) endAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.programs {
		_ = p.conn.Close() // what follows is as if the program had ended
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
