package hnstest

import (
	"slices"
	"strconv"

	"flannel/internal/test/hnstest/api"
	"flannel/pkg/windows/hns"
)

// Kinds of Event: those of HCN (HCN_NOTIFICATIONS in computenetwork.h) and,
// with numbers of our own, those of the IP Helper API.
const (
	NetworkCreate     = 0x00000002
	NetworkDelete     = 0x00000004
	ServiceDisconnect = 0x01000000

	InterfaceChange = 0x7f000001
	AddressChange   = 0x7f000002
	RouteChange     = 0x7f000003
)

// Event is a notification to all that have registered for its kind.
type Event struct {
	Kind uint32
	Data string // ID of the network; empty for other kinds
}

func (e Event) ofStack() bool { return e.Kind >= InterfaceChange }

// watcher is a function that is called after changes of HNS or, with stack, of
// the IP stack.
type watcher struct {
	stack   bool
	changed func()
}

// notify adds an event, which the listeners of programs read (Next), and calls the watchers
// for it, which are not told what has changed.
func (m *Machine) notify(kind uint32, data string) {
	e := Event{kind, data}
	if !e.ofStack() && m.knobs.Silent {
		return
	}
	m.events = append(m.events, e)
	m.wakeListeners()
	for _, w := range m.watchers {
		if w.stack == e.ofStack() {
			go w.changed() // in a goroutine, because it may call the machine, which is locked
		}
	}
}

func (m *Machine) notifyStack(kind uint32) { m.notify(kind, "") }

// wakeListeners makes all calls of Next check again whether there is an event for them.
func (m *Machine) wakeListeners() {
	close(m.eventAdded)
	m.eventAdded = make(chan struct{})
}

// watch registers a function until stop is called.
func (m *Machine) watch(stack bool, changed func()) (stop func()) {
	id := m.nextID()
	m.watchers[id] = watcher{stack, changed}
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.watchers, id)
	}
}

// Restart restarts HNS. Networks that are not persistent, and ghosts, are deleted, handles
// become invalid, and registrations for HNS end with ServiceDisconnect. Namespaces of pods
// stay, and still list the endpoints that were in them.
func (m *Machine) Restart() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.notify(ServiceDisconnect, "")
	for n, h := range m.handles {
		if h.kind == api.CallbackKind && h.id == "IP" { // a registration for the IP stack
			continue
		}
		if delete(m.handles, n); h.kind == api.CallbackKind {
			m.listeners[strconv.FormatUint(n, 10)].ended = true
		}
	}
	m.wakeListeners()
	if m.knobs.RestartLosesEndpoints {
		for _, t := range slices.Clone(m.objects[api.EndpointKind]) {
			m.removeObject(api.EndpointKind, t)
		}
		return
	}
	for _, n := range m.networks {
		if n.NonPersistent || n.ghost {
			defer m.removeNetwork(n) // after this loop, because it changes m.networks
		}
	}
}

var _ interface {
	hns.Calls
	hns.Stack
} = (*Machine)(nil)
