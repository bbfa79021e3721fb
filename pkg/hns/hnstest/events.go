package hnstest

import (
	"strconv"

	"flannel/pkg/hns"
	"flannel/pkg/hns/hnstest/api"
)

// Kinds of Event: those of HCN (HCN_NOTIFICATIONS in computenetwork.h), and those of the IP Helper API.
const (
	NetworkCreate     = 0x00000002
	NetworkDelete     = 0x00000004
	ServiceDisconnect = 0x01000000

	InterfaceChange = 0x7f000001
	AddressChange   = 0x7f000002
	RouteChange     = 0x7f000003
)

// Event is something that the machine tells of to whoever registered for it.
type Event struct {
	Kind uint32
	Data string // ID of a network
}

func (e Event) ofStack() bool { return e.Kind >= InterfaceChange }

// watcher is a function to call after changes of HNS or of the IP stack.
type watcher struct {
	stack   bool
	changed func()
}

// tell makes an event known.
func (m *Machine) tell(kind uint32, data string) {
	e := Event{kind, data}
	if !e.ofStack() && m.knobs.Silent {
		return
	}
	m.events = append(m.events, e)
	m.wake()
	for _, w := range m.watchers {
		if w.stack == e.ofStack() {
			go w.changed() // not from here: it may well call the machine, which is locked
		}
	}
}

func (m *Machine) tellStack(kind uint32) { m.tell(kind, "") }

// wake lets those look again who wait for events.
func (m *Machine) wake() {
	close(m.happened)
	m.happened = make(chan struct{})
}

// watch registers a function until stop.
func (m *Machine) watch(stack bool, changed func()) (stop func()) {
	id := m.nextID()
	m.watchers[id] = watcher{stack, changed}
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.watchers, id)
	}
}

// Restart restarts HNS: what is not persistent is gone, handles are worth nothing, and notifications end with the word
// that the service went.
func (m *Machine) Restart() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tell(ServiceDisconnect, "")
	for n, h := range m.handles {
		if h.kind == api.CallbackKind && h.id == "IP" {
			continue
		}
		if delete(m.handles, n); h.kind == api.CallbackKind {
			m.listeners[strconv.FormatUint(n, 10)].ended = true
		}
	}
	m.wake()
	for _, n := range m.networks {
		if n.NonPersistent {
			defer m.removeNetwork(n)
		}
	}
}

var _ interface {
	hns.Calls
	hns.Stack
} = (*Machine)(nil)
