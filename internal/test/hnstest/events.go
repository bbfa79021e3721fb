package hnstest

import (
	"slices"
	"strconv"

	"flannel/internal/test/hnstest/api"
	"flannel/pkg/windows/hns"
)

// Kinds of Event: those of HCN (HCN_NOTIFICATIONS in computenetwork.h), and those of the
// IP Helper API, which has no numbers for them: ours mean nothing outside of this package.
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
	Data string // ID of the network; "" for other kinds
}

func (e Event) ofStack() bool { return e.Kind >= InterfaceChange }

// watcher is a function of the test's own process that is called after changes of HNS or,
// with stack, of the IP stack (Machine.Notify, Machine.Watch).
type watcher struct {
	stack   bool
	changed func()
}

// notify adds an event, which the listeners of programs read (Next), and calls the watchers
// for it, which are not told what has changed. A Silent HNS has no events, not even that of
// its end. The caller holds the lock, also of the functions below.
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

// wakeListeners makes all calls of Next check again whether there is an event for them, or
// whether their registration has ended.
func (m *Machine) wakeListeners() {
	close(m.eventAdded)
	m.eventAdded = make(chan struct{})
}

// watch registers a function until stop is called, which takes the lock itself.
func (m *Machine) watch(stack bool, changed func()) (stop func()) {
	id := m.nextID()
	m.watchers[id] = watcher{stack, changed}
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.watchers, id)
	}
}

// Restart restarts HNS. Networks that are not persistent, and ghosts (Admin.Ghost), are
// deleted with their endpoints; with Knobs.RestartLosesEndpoints, all endpoints and no
// network. Handles become invalid, and registrations for HNS end, after a
// ServiceDisconnect. Namespaces of pods stay, and still list the endpoints that were deleted.
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
	m.wakeListeners() // notify has not, if HNS is Silent
	if m.knobs.RestartLosesEndpoints {
		for _, t := range slices.Clone(m.objects[api.EndpointKind]) {
			m.removeObject(api.EndpointKind, t)
		}
		return
	}
	for _, n := range slices.Clone(m.networks) { // removeNetwork changes m.networks
		if n.NonPersistent || n.ghost {
			m.removeNetwork(n)
		}
	}
}

var _ interface {
	hns.Calls
	hns.Stack
} = (*Machine)(nil)
