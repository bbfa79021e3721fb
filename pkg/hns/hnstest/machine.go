package hnstest

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"flannel/pkg/hns"
	"flannel/pkg/hns/hnstest/api"
	"flannel/pkg/mac"
)

// Machine is a simulated Windows machine: HNS and the IP stack. It is an hns.Calls and an hns.Stack. Its methods may be
// called from any goroutine.
type Machine struct {
	mu     sync.Mutex
	knobs  Knobs
	faults []*Fault
	healed chan struct{} // closed by Heal, and then another
	body   Body

	networks []*network
	things   map[api.Kind][]*thing
	handles  map[uint64]handle
	self     *Program // this process, which makes the calls that are methods of the machine
	lastID   uint64   // of handles, MACs, watchers
	log      []Call

	adapters []*adapter
	routes   []hns.Route
	forward  map[family]bool
	trouble  []error

	events    []Event              // all that ever happened
	happened  chan struct{}        // closed when something does
	listeners map[string]*listener // by handle
	watchers  map[uint64]watcher
	timers    map[*time.Timer]bool
	waiting   []waiting
	closed    bool
}

// Call is one call as it was made, with its answer.
type Call struct {
	Func    string
	Args    []string
	Text    string // Func and Args for a reader: names for IDs and handles
	Result  hns.Code
	Output  string
	Changes bool // it is one of those that change something when they succeed
}

// String is the call as a golden file has it: without the answer, for what that says is up to HNS.
func (c Call) String() string {
	if c.Result != 0 {
		return fmt.Sprintf("%s = 0x%08x", c.Text, uint32(c.Result))
	}
	return c.Text
}

// Addresses of the machine that New makes.
var (
	HostAddr = netip.MustParsePrefix("10.99.0.2/24")
	Gateway  = netip.MustParseAddr("10.99.0.1")
)

// New returns a machine in memory with one physical adapter: "Ethernet", HostAddr set by hand, a default route to
// Gateway.
func New() *Machine {
	m := NewWith(&nobody{})
	m.Plug(hns.Adapter{
		Name: "Ethernet", Description: "Microsoft Hyper-V Network Adapter", MTU: 1500, MAC: mac.Addr{0, 0x15, 0x5d, 1, 2, 3},
		Up: true, Addrs: []hns.Address{{Prefix: HostAddr, Manual: true, Preferred: true}}, DNS: []netip.Addr{Gateway},
	}, hns.Route{Dst: netip.MustParsePrefix("0.0.0.0/0"), NextHop: Gateway, Metric: 10, Ours: true})
	return m
}

// NewWith returns a machine that a body follows, with a loopback adapter alone. Plug gives it others.
func NewWith(b Body) *Machine {
	m := &Machine{
		healed: make(chan struct{}), happened: make(chan struct{}), body: b, things: map[api.Kind][]*thing{},
		handles: map[uint64]handle{}, lastID: 0x1000, forward: map[family]bool{}, watchers: map[uint64]watcher{}, listeners: map[string]*listener{},
		timers: map[*time.Timer]bool{},
	}
	m.self = m.Begin()
	m.adapters = []*adapter{{Adapter: hns.Adapter{
		Name: "Loopback Pseudo-Interface 1", GUID: api.NewGUID(), Index: 1, MTU: 1500, Up: true, Loopback: true,
		Addrs: []hns.Address{
			{Prefix: netip.MustParsePrefix("127.0.0.1/8"), Preferred: true},
			{Prefix: netip.MustParsePrefix("::1/128"), Preferred: true},
		},
	}}}
	return m
}

// Close stops what the machine does on its own, and what hangs.
func (m *Machine) Close() error {
	m.Heal()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	for t := range m.timers {
		t.Stop()
	}
	m.wake()
	return m.body.Close()
}

// enter makes a call: its fault, if one waits for it, and its entry in the log. act runs with the machine locked.
func (m *Machine) enter(function string, args []string, changes bool, act func() (string, hns.Code)) (string, hns.Code) {
	fault, healed := m.fault(function, args)
	fault.wait(healed)
	m.mu.Lock()
	defer m.mu.Unlock()
	// Names before the call: what it deletes has none after it.
	call := Call{Func: function, Args: args, Text: m.readable(function, args), Result: fault.Code, Changes: changes}
	switch {
	case api.IsHNS(function) && m.knobs.Down:
		call.Result = hns.RPCServerUnavailable
	case fault.Code == 0:
		call.Output, call.Result = act()
	case fault.After:
		act()
	}
	m.log = append(m.log, call)
	return call.Output, call.Result
}

// readable is a call with the names of what its arguments name by handle or ID.
func (m *Machine) readable(function string, args []string) string {
	s := function
	for i, arg := range args {
		n, err := strconv.ParseUint(arg, 10, 64)
		if h, ok := m.handles[n]; i == 0 && err == nil && ok {
			arg = h.id
		}
		if arg != api.NoID {
			s += " " + arg
		}
	}
	for _, n := range m.networks {
		s = strings.NewReplacer(n.id, n.Name, strings.ToUpper(n.id), n.Name).Replace(s)
	}
	for _, t := range m.things[api.EndpointKind] {
		s = strings.NewReplacer(t.id, t.Name(), strings.ToUpper(t.id), t.Name()).Replace(s)
	}
	return s
}

// later does something with the machine locked, at once where there is nothing to wait for.
func (m *Machine) later(d time.Duration, act func()) {
	if d <= 0 {
		act()
		return
	}
	var t *time.Timer
	t = time.AfterFunc(d, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if delete(m.timers, t); !m.closed {
			act()
		}
	})
	m.timers[t] = true
}

// Log returns all calls since the machine was made or ForgetLog was called.
func (m *Machine) Log() []Call {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.log)
}

// Changes returns those calls of the log that changed something.
func (m *Machine) Changes() []Call {
	return slices.DeleteFunc(m.Log(), func(c Call) bool { return !c.Changes || c.Result != 0 })
}

// ForgetLog empties the log.
func (m *Machine) ForgetLog() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.log = nil
}

// Trouble returns what the machine's body refused: the test's own fault, mostly.
func (m *Machine) Trouble() []error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.trouble)
}

// must keeps an error of the body, which no caller on the real machine would ever see.
func (m *Machine) must(what string, err error) {
	if err != nil {
		m.trouble = append(m.trouble, fmt.Errorf("%s: %w", what, err))
	}
}

func (m *Machine) nextID() uint64 {
	m.lastID++
	return m.lastID
}
