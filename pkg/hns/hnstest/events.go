package hnstest

import (
	"fmt"
	"strconv"

	"flannel/pkg/hns"
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

// listener is a DLL that wants to be told of events.
type listener struct {
	next  int // of Machine.events, not told yet
	wants func(Event) bool
	ended bool // its registration is over: after what is not told yet there is nothing more
}

// register answers the calls of HNS that begin and end notifications for a DLL. Each is a handle.
func (m *Machine) register(function string, args []string) (string, hns.Code) {
	switch function {
	case "HcnRegisterServiceCallback", "HcnRegisterNetworkCallback":
		if m.knobs.Silent {
			return "", hns.NotImplemented
		}
		return m.listen("HNS", func(e Event) bool { return !e.ofStack() }), 0
	case "HcnUnregisterServiceCallback", "HcnUnregisterNetworkCallback":
		return "", m.unlisten(args[0])
	}
	return "", hns.NotImplemented
}

// notify does the same for the IP Helper API.
func (m *Machine) notify(function, number string) (*blob, hns.Code) {
	out, code := m.enter(function, []string{number}, false, func() (string, hns.Code) {
		if function == "CancelMibChangeNotify2" {
			return "", m.unlisten(number)
		}
		kind := map[string]uint32{
			"NotifyIpInterfaceChange": InterfaceChange, "NotifyUnicastIpAddressChange": AddressChange, "NotifyRouteChange2": RouteChange,
		}[function]
		return m.listen("IP", func(e Event) bool { return e.Kind == kind }), 0
	})
	return &blob{bytes: []byte(out)}, code
}

func (m *Machine) listen(of string, wants func(Event) bool) string {
	number := m.open(callbackKind, of)
	m.listeners[number] = &listener{next: len(m.events), wants: wants}
	return number
}

func (m *Machine) unlisten(number string) hns.Code {
	if _, code := m.held(callbackKind, number); code != 0 {
		return code
	}
	m.forget(number)
	m.listeners[number].ended = true
	m.wake()
	return 0
}

// abandon ends a registration of a program that has ended.
func (m *Machine) abandon(number string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unlisten(number)
}

// next waits for the next event that a listener wants, as "kind data". A code says that none will come any more.
func (m *Machine) next(number string) (string, hns.Code) {
	for {
		m.mu.Lock()
		l := m.listeners[number]
		if l == nil {
			m.mu.Unlock()
			return "", invalidHandle
		}
		for l.next < len(m.events) {
			e := m.events[l.next]
			if l.next++; l.wants(e) {
				m.mu.Unlock()
				return fmt.Sprintf("%d %s", e.Kind, e.Data), 0
			}
		}
		if l.ended || m.closed {
			delete(m.listeners, number)
			m.mu.Unlock()
			return "", invalidHandle
		}
		happened := m.happened
		m.mu.Unlock()
		<-happened
	}
}

// Restart restarts HNS: what is not persistent is gone, handles are worth nothing, and notifications end with the word
// that the service went.
func (m *Machine) Restart() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tell(ServiceDisconnect, "")
	for n, h := range m.handles {
		if h.kind == callbackKind && h.id == "IP" {
			continue
		}
		if delete(m.handles, n); h.kind == callbackKind {
			m.listeners[strconv.FormatUint(n, 10)].ended = true
		}
	}
	m.wake()
	for _, n := range m.networks {
		if n.fleeting {
			defer m.removeNetwork(n)
		}
	}
}

var _ interface {
	hns.Calls
	hns.Stack
} = (*Machine)(nil)
