package hnstest

import (
	"fmt"

	"flannel/internal/test/hnstest/api"
	"flannel/pkg/windows/hns"
)

// listener is a registration of a Program, whose events the program reads one by one, with
// Next. (Programs in Wine do; the tests' own process uses Watch and Notify instead.)
type listener struct {
	next  int // index in Machine.events of the next one to look at
	wants func(Event) bool
	// ended: unregistered, or HNS or the machine was restarted. Next returns what is in the list,
	// unless the program has ended, and then removes the listener.
	ended bool
}

// register answers the calls of HNS that register and unregister callbacks. A
// registration is a handle.
func (p *Program) register(function string, args []string) (string, hns.Code) {
	switch function {
	case "HcnRegisterServiceCallback", "HcnRegisterNetworkCallback":
		if p.m.knobs.Silent {
			return "", hns.NotImplemented
		}
		return p.listen("HNS", func(e Event) bool { return !e.ofStack() }), 0
	case "HcnUnregisterServiceCallback", "HcnUnregisterNetworkCallback":
		return "", p.m.unlisten(args[0])
	}
	return "", hns.NotImplemented
}

// Notify does the same as register for the IP Helper API. number is the handle of a
// registration for CancelMibChangeNotify2.
func (p *Program) Notify(function, number string) (string, hns.Code) {
	return p.m.call(function, []string{number}, false, func() (string, hns.Code) {
		if function == "CancelMibChangeNotify2" {
			return "", p.m.unlisten(number)
		}
		kind := map[string]uint32{
			"NotifyIpInterfaceChange": InterfaceChange, "NotifyUnicastIpAddressChange": AddressChange,
			"NotifyRouteChange2": RouteChange,
		}[function]
		return p.listen("IP", func(e Event) bool { return e.Kind == kind }), 0
	})
}

// listen adds a registration and returns its handle. owner is "HNS" or "IP". Events before
// this call do not count. If the program has ended, the handle is not valid.
func (p *Program) listen(owner string, wants func(Event) bool) string {
	number := p.open(api.CallbackKind, owner)
	p.m.listeners[number] = &listener{next: len(p.m.events), wants: wants}
	return number
}

// unlisten ends a registration by its handle.
func (m *Machine) unlisten(number string) hns.Code {
	if _, code := m.resolveHandle(api.CallbackKind, number); code != 0 {
		return code
	}
	m.closeHandle(number)
	if l := m.listeners[number]; l != nil { // nil: the machine was closed, and Next has removed it
		l.ended = true
	}
	m.wakeListeners()
	return 0
}

// Next waits for the next event of a registration and returns it as "kind
// data". InvalidHandle means that there will be no more: the registration, HNS, the
// machine or the program has ended.
func (p *Program) Next(number string) (string, hns.Code) {
	m := p.m
	for {
		m.mu.Lock()
		l := m.listeners[number]
		if l == nil || p.ended { // p.ended: also while this call waited; nil: an earlier call has removed the listener
			m.mu.Unlock()
			return "", api.InvalidHandle
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
			return "", api.InvalidHandle
		}
		eventAdded := m.eventAdded
		m.mu.Unlock()
		<-eventAdded
	}
}
