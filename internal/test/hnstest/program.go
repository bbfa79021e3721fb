package hnstest

import (
	"fmt"
	"strconv"
	"strings"

	"flannel/internal/test/hnstest/api"
	"flannel/pkg/windows/hns"
)

// Program is a running program on the machine: one in Wine (package wine), or Machine.self,
// which stands for the process of the test. When it ends, its handles are closed, as on
// Windows.
type Program struct {
	m     *Machine
	ended bool // guarded by the machine's lock
}

// handle is an open object or a registration for notifications.
type handle struct {
	by   *Program // owner
	kind api.Kind
	id   string // of the object; of a registration: "HNS" or "IP"
}

// Begin starts a program.
func (m *Machine) Begin() *Program { return &Program{m: m} }

// End ends the program: its handles are closed, and a Next that waits returns. A call that
// is still running does not leave a handle open either.
func (p *Program) End() {
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	p.ended = true
	for n, h := range p.m.handles {
		if h.by == p {
			delete(p.m.handles, n)
		}
	}
	p.m.wakeListeners()
}

// HNS makes one call of computenetwork.dll (HCN, functions Hcn…) or vmcompute.dll (the older
// API, function HNSCall). Its arguments are text: GUIDs, handles as decimal numbers, JSON
// documents. It returns the document or handle of the answer, and 0 or the code of an error.
// Machine.call takes the lock, applies faults and logs the call.
func (p *Program) HNS(function string, args ...string) (string, hns.Code) {
	verb, k := api.Split(function) // HcnCreateNetwork: Create, Network
	changes := verb == "Create" || verb == "Modify" || verb == "Delete"
	if function == "HNSCall" && len(args) == 3 {
		changes = args[0] != "GET" // an HTTP method
	}
	return p.m.call(function, args, changes, func() (string, hns.Code) {
		if len(args) < api.Arity(function) {
			return "", api.InvalidArg
		}
		switch {
		case function == "HNSCall":
			return p.m.v1(args[0], args[1], args[2])
		case !api.Known(k): // not about an object: it begins or ends a registration for notifications
			return p.register(function, args)
		}
		return p.perform(verb, k, args)
	})
}

// perform runs a call of HCN on objects of a kind. The caller holds the lock.
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
		if code := m.lookUp(k, id); code != 0 {
			return "", code
		}
		return p.open(k, id), 0
	case "Delete":
		return "", m.delete(k, strings.ToLower(args[0]))
	}
	// Modify, Query and Close have a handle.
	id, code := m.resolveHandle(k, args[0])
	if code != 0 {
		return "", code
	}
	// A handle can and must be closed even if its object was deleted.
	if verb == "Close" {
		m.closeHandle(args[0])
		return "", 0
	}
	if code := m.lookUp(k, id); code != 0 {
		return "", code
	}
	if verb == "Modify" {
		return "", m.modify(k, id, args[1])
	}
	return api.Text(m.properties(k, id)), 0 // Query; whatever properties args[1] selects, the answer has all
}

// open returns a new handle. If the program has ended, the handle is not valid.
func (p *Program) open(k api.Kind, id string) string {
	n := p.m.nextID()
	if !p.ended {
		p.m.handles[n] = handle{p, k, id}
	}
	return strconv.FormatUint(n, 10)
}

// resolveHandle returns the ID of the object that a handle of a kind refers to.
func (m *Machine) resolveHandle(k api.Kind, number string) (string, hns.Code) {
	n, err := strconv.ParseUint(number, 10, 64)
	if h, ok := m.handles[n]; err == nil && ok && h.kind == k {
		return h.id, 0
	}
	return "", api.InvalidHandle
}

// closeHandle closes a handle that resolveHandle has found. That of a registration also has
// a listener, which unlisten ends.
func (m *Machine) closeHandle(number string) {
	n, _ := strconv.ParseUint(number, 10, 64) // resolveHandle has parsed it
	delete(m.handles, n)
}

// OpenHandles returns the number of open objects and registrations.
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
