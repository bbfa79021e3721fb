package hnstest

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"time"

	"flannel/internal/test/hnstest/api"
	"flannel/pkg/dataplane"
	"flannel/pkg/windows/hns"
)

// Machine is a simulated Windows machine: HNS, the IP stack and the firewall. It
// implements hns.Calls (calls.go), hns.Stack (stack.go, dns.go, boot.go, category.go) and
// hns.Firewall (firewall.go). Its exported methods may be called from any goroutine: they
// lock mu. The methods that read or change the state run with mu held.
type Machine struct {
	mu     sync.Mutex // guards everything below
	knobs  Knobs
	faults []*Fault      // the first one that matches a call applies
	healed chan struct{} // closed and replaced by Heal
	hung   bool          // see Hung
	body   Body          // carries out changes elsewhere, such as in the kernel; called with mu held

	networks []*network
	objects  map[api.Kind][]*object          // those of HNS that are no networks, in the order of their creation
	byID     map[api.Kind]map[string]*object // the same by their IDs in lower case
	handles  map[uint64]handle               // open ones
	self     *Program                        // on behalf of which the methods of hns.Calls make calls
	lastID   uint64                          // the last number given to a handle or watcher
	log      []Call

	adapters  []*adapter
	routes    []hns.Route
	forward   map[family]bool
	stored    map[string]hns.Persistent // the registry, by the GUIDs of adapters
	deletedAt time.Time                 // when the last network was deleted
	dead      map[int]bool              // by index, physical adapters whose switch is dead: see Knobs.DeadSwitch
	boots     int                       // number of calls of Reboot
	trouble   []error                   // see Trouble
	firewall  firewall

	events     []Event              // all events since the machine was created
	eventAdded chan struct{}        // closed and replaced when an event is added
	listeners  map[string]*listener // of programs, by handle, as the text that programs have of it
	watchers   map[uint64]watcher   // by a number of their own
	timers     map[*time.Timer]bool // that have not fired
	waiting    []waiting            // for a negative knob to change
	closed     bool                 // timers do nothing any more
}

// Call is one call and its answer.
type Call struct {
	Func    string
	Args    []string
	Text    string // Func and Args, with names instead of IDs and handles
	Result  hns.Code
	Output  string // the document or handle that it returned
	Changes bool   // the function changes something if it succeeds
}

// String returns the call as golden files contain it: without Output, which
// depends on HNS.
func (c Call) String() string {
	if c.Result != 0 {
		return fmt.Sprintf("%s = 0x%08x", c.Text, uint32(c.Result))
	}
	return c.Text
}

// HostAddr and Gateway are addresses of the machine that New makes.
var (
	HostAddr = netip.MustParsePrefix("10.99.0.2/24")
	Gateway  = netip.MustParseAddr("10.99.0.1")
)

// New returns a machine in memory with one physical adapter, "Ethernet". It has
// the static address HostAddr and a default route to Gateway.
func New() *Machine {
	m := NewWith(&inMemory{})
	m.Plug(hns.Adapter{
		Name: "Ethernet", Description: "Microsoft Hyper-V Network Adapter", MTU: 1500,
		MAC: dataplane.MAC{0, 0x15, 0x5d, 1, 2, 3},
		Up:  true, Registers: true, Addrs: []hns.Address{{Prefix: HostAddr, Manual: true, Preferred: true}}, DNS: []netip.Addr{Gateway},
	}, hns.Route{Dst: netip.MustParsePrefix("0.0.0.0/0"), NextHop: Gateway, Metric: 10, Ours: true})
	return m
}

// NewWith returns a machine with a Body, which has only a loopback adapter. Add
// others with Plug.
func NewWith(b Body) *Machine {
	m := &Machine{
		healed: make(chan struct{}), eventAdded: make(chan struct{}), body: b, objects: map[api.Kind][]*object{},
		byID: map[api.Kind]map[string]*object{}, handles: map[uint64]handle{}, lastID: 0x1000,
		forward: map[family]bool{}, stored: map[string]hns.Persistent{}, dead: map[int]bool{}, watchers: map[uint64]watcher{},
		listeners: map[string]*listener{},
		timers:    map[*time.Timer]bool{},
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

// Close ends hanging calls, stops all timers, and closes the body.
func (m *Machine) Close() error {
	m.Heal()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	for t := range m.timers {
		t.Stop()
	}
	m.wakeListeners()
	return m.body.Close()
}

// call runs one call of HNS, the IP stack or the firewall: it applies a fault, if one
// matches, and adds the call to the log. act is the call itself, returns its output and
// result, and runs with the machine locked. The caller does not hold the lock. changes:
// see Call.
func (m *Machine) call(function string, args []string, changes bool, act func() (string, hns.Code)) (string, hns.Code) {
	fault, healed := m.takeFault(function, args)
	fault.wait(healed)
	m.mu.Lock()
	defer m.mu.Unlock()
	// Resolve names before the call, which may delete the objects that they
	// belong to.
	call := Call{Func: function, Args: args, Text: m.readable(function, args), Result: fault.Code, Changes: changes}
	switch {
	case api.IsHNS(function) && m.knobs.Down:
		call.Result = hns.RPCServerUnavailable
	case fault.Code == 0:
		call.Output, call.Result = act()
	case fault.After:
		act() // its result is replaced by the fault's
	}
	m.log = append(m.log, call)
	return call.Output, call.Result
}

// readable returns a call as text, with names instead of handles and IDs.
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
	return guid.ReplaceAllStringFunc(s, func(id string) string {
		if n := m.anyNetwork(id); n != nil {
			return n.Name
		} else if t := m.object(api.EndpointKind, id); t != nil {
			return t.Name()
		}
		return id
	})
}

var guid = regexp.MustCompile(`[[:xdigit:]]{8}(-[[:xdigit:]]{4}){3}-[[:xdigit:]]{12}`)

// lag is how much later than a knob says something happens. Durations of tests
// and of flanneld are whole tenths of seconds, so that in a bubble of testing/synctest what
// the machine does by itself does not coincide with what they do: either would be the first.
const lag = 7 * time.Millisecond

// afterFunc calls act after d with the machine locked, or at once if d is not
// positive. The caller holds the lock.
func (m *Machine) afterFunc(d time.Duration, act func()) {
	if d <= 0 {
		act()
		return
	}
	var t *time.Timer
	t = time.AfterFunc(d+lag, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if delete(m.timers, t); !m.closed {
			act()
		}
	})
	m.timers[t] = true
}

// Log returns all calls since the machine was created or ForgetLog was called.
func (m *Machine) Log() []Call {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.log)
}

// Changes returns the calls in the log that changed something.
func (m *Machine) Changes() []Call {
	return slices.DeleteFunc(m.Log(), func(c Call) bool { return !c.Changes || c.Result != 0 })
}

// ForgetLog empties the log.
func (m *Machine) ForgetLog() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.log = nil
}

// Trouble returns the errors of the body, most of which are mistakes of the
// test.
func (m *Machine) Trouble() []error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.trouble)
}

// recordError keeps an error of the body for Trouble. A caller of the real API
// could not get it.
func (m *Machine) recordError(what string, err error) {
	if err != nil {
		m.trouble = append(m.trouble, fmt.Errorf("%s: %w", what, err))
	}
}

// nextID returns a number for a handle or watcher.
func (m *Machine) nextID() uint64 {
	m.lastID++
	return m.lastID
}
