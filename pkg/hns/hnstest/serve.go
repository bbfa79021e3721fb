package hnstest

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"

	"flannel/pkg/hns"
)

// The DLLs (folder dll), and Dial, speak frames over TCP:
//
//	u32 length of the rest | u32 number of fields | each field: u32 length, bytes      (little endian)
//
// A request's fields are the name of the call and its arguments, the answer's are the code (4 bytes), what the call
// returns, and the error record, or where the pointers in the former are (u32 each). Calls on one connection run one
// after another.

const maxFrame = 64 << 20 // bytes

// Serve answers DLLs and Dial until the listener is closed, and then waits for nobody.
func (m *Machine) Serve(l net.Listener) error {
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		// A connection each, so that a call that hangs delays no other.
		go m.serve(c)
	}
}

func (m *Machine) serve(c net.Conn) {
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
					m.abandon(string(fields[1]))
				}
			}
		}()
		answer := m.answer(string(fields[0]), fields[1:])
		close(answered)
		if err := writeFrame(c, answer...); err != nil {
			return
		}
		<-there
	}
}

func (m *Machine) answer(function string, args [][]byte) [][]byte {
	switch {
	case function == "Control":
		return m.control(args)
	case function == "Wait" && len(args) == 1:
		event, code := m.next(string(args[0]))
		return [][]byte{pack(uint32(code)), []byte(event), nil}
	case isHNS(function):
		texts := make([]string, len(args))
		for i, arg := range args {
			texts[i] = string(arg)
		}
		out, code := m.hcn(function, texts...)
		return [][]byte{pack(uint32(code)), []byte(out), []byte(record(code))}
	}
	out, code := m.ipHelper(function, args)
	if out == nil {
		out = &blob{}
	}
	return [][]byte{pack(uint32(code)), out.bytes, pack(out.pointers)}
}

func readFrame(r io.Reader) ([][]byte, error) {
	var size uint32
	if err := binary.Read(r, binary.LittleEndian, &size); err != nil {
		return nil, err
	}
	if size < 4 || size > maxFrame {
		return nil, fmt.Errorf("a frame of %d bytes", size)
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(b)
	b = b[4:]
	var fields [][]byte
	for ; n > 0; n-- {
		if len(b) < 4 || uint64(binary.LittleEndian.Uint32(b)) > uint64(len(b)-4) {
			return nil, io.ErrUnexpectedEOF
		}
		end := 4 + binary.LittleEndian.Uint32(b)
		fields = append(fields, b[4:end])
		b = b[end:]
	}
	return fields, nil
}

func writeFrame(w io.Writer, fields ...[]byte) error {
	b := binary.LittleEndian.AppendUint32(make([]byte, 4), uint32(len(fields)))
	for _, f := range fields {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(f)))
		b = append(b, f...)
	}
	binary.LittleEndian.PutUint32(b, uint32(len(b)-4))
	_, err := w.Write(b)
	return err
}

// Order is what a test asks of a machine in another process; it is done in the order of the fields.
type Order struct {
	Turn      json.RawMessage `json:",omitempty"` // some Knobs: the others stay
	Heal      bool            `json:",omitempty"`
	Fail      []Fault         `json:",omitempty"`
	Restart   bool            `json:",omitempty"`
	ForgetLog bool            `json:",omitempty"`

	// Another hand.
	DeleteNetwork      string    `json:",omitempty"` // its name
	DeleteEndpoint     string    `json:",omitempty"` // its name
	DeleteRemoteSubnet [2]string `json:",omitempty"` // the network's name, the subnet
	DeleteRoutes       string    `json:",omitempty"` // their destination
	AddRoute           *hns.Route
	Rename             [2]string   `json:",omitempty"` // an adapter, its new name
	Readdress          []string    `json:",omitempty"` // an adapter, its new addresses
	StopForwarding     string      `json:",omitempty"` // an adapter
	Replace            [][2]string `json:",omitempty"` // in the text of all policies of all networks
}

// Report is how a machine in another process stands after an Order.
type Report struct {
	Log         []Call
	Networks    []json.RawMessage
	Endpoints   []json.RawMessage
	Balancers   []json.RawMessage // load balancers
	Adapters    []hns.Adapter
	Routes      []hns.Route // made by programs
	OpenHandles int         // of objects, without registrations
	Trouble     []string
}

// Changes are the calls that changed something.
func (r Report) Changes() []Call {
	return slices.DeleteFunc(slices.Clone(r.Log), func(c Call) bool { return !c.Changes || c.Result != 0 })
}

// Remote is a machine in another process.
type Remote struct {
	mu   sync.Mutex
	conn net.Conn
}

// Dial connects to a machine that is served at an address. Close ends it.
func Dial(address string) (*Remote, error) {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("reach the simulated machine: %w", err)
	}
	return &Remote{conn: c}, nil
}

// Close ends the connection; the machine goes on.
func (r *Remote) Close() error { return r.conn.Close() }

// Call makes a call of HNS as a program on the machine would, and returns its answer: that of Create is a handle.
func (r *Remote) Call(function string, args ...string) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fields := [][]byte{[]byte(function)}
	for _, arg := range args {
		fields = append(fields, []byte(arg))
	}
	if err := writeFrame(r.conn, fields...); err != nil {
		return "", err
	}
	answer, err := readFrame(r.conn)
	if err != nil {
		return "", err
	}
	if len(answer) != 3 || len(answer[0]) != 4 {
		return "", io.ErrUnexpectedEOF
	}
	return string(answer[1]), problem(function, hns.Code(binary.LittleEndian.Uint32(answer[0])))
}

// Do gives an order, and returns how the machine stands after it.
func (r *Remote) Do(o Order) (Report, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var report Report
	if err := writeFrame(r.conn, []byte("Control"), []byte(text(o))); err != nil {
		return report, err
	}
	fields, err := readFrame(r.conn)
	if err != nil {
		return report, err
	}
	if len(fields) != 3 {
		return report, io.ErrUnexpectedEOF
	}
	if len(fields[2]) > 0 {
		return report, errors.New(string(fields[2]))
	}
	return report, json.Unmarshal(fields[1], &report)
}
