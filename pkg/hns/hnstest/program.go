package hnstest

import (
	"fmt"
	"strconv"
	"strings"

	"flannel/pkg/hns"
	"flannel/pkg/hns/hnstest/api"
)

// Program is one that runs on the machine. What it has open is closed when it ends, as Windows does.
type Program struct {
	m     *Machine
	ended bool // guarded by the machine's lock
}

// handle is an object that a program has opened, or what it has registered for.
type handle struct {
	by   *Program
	kind api.Kind
	id   string // of the object; for a callback whose it is
}

// Begin starts a program.
func (m *Machine) Begin() *Program { return &Program{m: m} }

// End ends the program. What a call of it opens that is under way has nobody to close it either.
func (p *Program) End() {
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	p.ended = true
	for n, h := range p.m.handles {
		if h.by == p {
			delete(p.m.handles, n)
			delete(p.m.listeners, strconv.FormatUint(n, 10))
		}
	}
	p.m.wake()
}

// HNS makes one call of computenetwork.dll or vmcompute.dll, its arguments as text: GUIDs, handles as decimal numbers,
// documents. It returns the document or the handle that the call returns.
func (p *Program) HNS(function string, args ...string) (string, hns.Code) {
	verb, k := api.Split(function)
	changes := verb == "Create" || verb == "Modify" || verb == "Delete"
	if function == "HNSCall" && len(args) == 3 {
		changes = args[0] != "GET" // the older API's verbs are those of HTTP
	}
	return p.m.enter(function, args, changes, func() (string, hns.Code) {
		if len(args) < api.Arity(function) {
			return "", api.InvalidArg
		}
		switch {
		case function == "HNSCall":
			return p.m.v1(args[0], args[1], args[2])
		case !api.Known(k):
			return p.register(function, args)
		}
		return p.perform(verb, k, args)
	})
}

func (p *Program) perform(verb string, k api.Kind, args []string) (string, hns.Code) {
	m := p.m
	switch verb {
	case "Enumerate":
		return m.enumerate(k, args[0])
	case "Create":
		id, code := m.create(k, args)
		if code != 0 {
			return "", code
		}
		return p.open(k, id), 0
	case "Open":
		id := strings.ToLower(args[0])
		if code := m.look(k, id); code != 0 {
			return "", code
		}
		return p.open(k, id), 0
	case "Delete":
		return "", m.delete(k, strings.ToLower(args[0]))
	}
	id, code := m.held(k, args[0])
	if code != 0 {
		return "", code
	}
	// Closing works, and must be done, when the object has gone.
	if verb == "Close" {
		m.forget(args[0])
		return "", 0
	}
	if code := m.look(k, id); code != 0 {
		return "", code
	}
	if verb == "Modify" {
		return "", m.modify(k, id, args[1])
	}
	return api.Text(m.view(k, id)), 0
}

// open returns a new handle. That of a program which has ended is closed at once.
func (p *Program) open(k api.Kind, id string) string {
	n := p.m.nextID()
	if !p.ended {
		p.m.handles[n] = handle{p, k, id}
	}
	return strconv.FormatUint(n, 10)
}

// held is the object that a handle stands for.
func (m *Machine) held(k api.Kind, number string) (string, hns.Code) {
	n, err := strconv.ParseUint(number, 10, 64)
	if h, ok := m.handles[n]; err == nil && ok && h.kind == k {
		return h.id, 0
	}
	return "", api.InvalidHandle
}

// forget closes a handle.
func (m *Machine) forget(number string) {
	n, _ := strconv.ParseUint(number, 10, 64) // one that is held is a number
	delete(m.handles, n)
}

// OpenHandles is how many objects and registrations are open.
func (m *Machine) OpenHandles() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.handles)
}

// OpenObjects returns a line for each open handle of an object: its kind, its ID, and whether the test itself opened it.
// Registrations for events, which a program keeps for as long as it runs, are left out.
func (m *Machine) OpenObjects() (open []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, h := range m.handles {
		if h.kind != api.CallbackKind {
			open = append(open, fmt.Sprintf("%s %s, by the test: %t", h.kind, h.id, h.by == m.self))
		}
	}
	return open
}
