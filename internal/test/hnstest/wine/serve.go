package wine

import (
	"bufio"
	"errors"
	"net"
	"sync"

	"flannel/internal/test/hnstest"
	"flannel/internal/test/hnstest/api"
)

// Server makes a machine available to the DLLs and to Dial.
type Server struct {
	Machine *hnstest.Machine
	// More holds calls that Windows does not have, by name: those of the lab's tests. Callers
	// get the text of their errors as the Detail of an hns.Error.
	More map[string]func(args [][]byte) ([]byte, error)

	firewall ruleObjects

	mu       sync.Mutex
	programs map[string]program // those of the call Program, by name, for the requests of other connections
}

// program is a Program on a machine, and the connection that it lives on.
type program struct {
	*hnstest.Program
	machine *hnstest.Machine
	conn    net.Conn // the program ends with it
}

// Serve accepts connections until the listener is closed. It then ends all
// programs, without waiting for calls that are running.
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
		// Each connection has a goroutine, so a hanging call does not block
		// others.
		go s.serve(c)
	}
}

// serve answers the requests of one connection, one after the other: see frame.go.
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
		if function == "Program" { // the first connection of a program
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

// join registers the program of a connection and returns its name.
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

// program returns the program that a request names: an empty name is that of
// its own connection.
func (s *Server) program(name string, own program) (p program, known bool) {
	if name == "" {
		return own, true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p, known = s.programs[name]
	return p, known
}

// endAll ends all programs that have made the call Program.
func (s *Server) endAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.programs {
		_ = p.conn.Close() // which ends the program
	}
}

// answer makes a call on behalf of a program, and returns the fields of the answer: code,
// result, and what frame.go says about the third.
func (s *Server) answer(p program, function string, args [][]byte) [][]byte {
	if more := s.More[function]; more != nil {
		answer, err := more(args)
		if err != nil {
			return [][]byte{pack(uint32(api.InvalidArg)), nil, []byte(err.Error())}
		}
		return [][]byte{pack(uint32(0)), answer, nil}
	}
	switch {
	case function == "Wait" && len(args) == 1: // for the next event of a registration
		event, code := p.Next(string(args[0]))
		return [][]byte{pack(uint32(code)), []byte(event), nil}
	case function == "NetFw":
		value, code := s.firewall.call(p.machine, args)
		return [][]byte{pack(uint32(code)), []byte(value), nil}
	case function == "NetList": // categories of networks
		value, code := netList(p.machine, args)
		return [][]byte{pack(uint32(code)), []byte(value), nil}
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
