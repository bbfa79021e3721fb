package hnstest

import (
	"flannel/internal/test/hnstest/api"
	"flannel/pkg/windows/hns"
)

// Each adapter of the machine is connected to a network of its own. The zero
// Category is the public one, as that of the firewall's profile. See
// Knobs.LosesCategory.

// Category returns the category of an adapter's network.
func (m *Machine) Category(guid string) (c hns.Category, err error) {
	code := m.category("INetwork.GetCategory", guid, false, func(a *adapter) hns.Code {
		c = a.category
		return 0
	})
	return c, api.Problem("INetwork.GetCategory", code)
}

// SetCategory sets the category of an adapter's network. See
// Knobs.CategoryByPolicy and CategoryReverts.
func (m *Machine) SetCategory(guid string, c hns.Category) error {
	code := m.category("INetwork.SetCategory", guid, true, func(a *adapter) hns.Code {
		switch {
		case c != hns.Public && c != hns.Private:
			return api.InvalidArg
		case m.knobs.CategoryByPolicy:
			return hns.AccessDenied
		}
		if !m.knobs.CategoryReverts {
			a.category = c
		}
		return 0
	})
	return api.Problem("INetwork.SetCategory", code)
}

// category calls act with the adapter, if it is connected.
func (m *Machine) category(function, guid string, changes bool, act func(*adapter) hns.Code) hns.Code {
	_, code := m.call(function, []string{guid}, changes, func() (string, hns.Code) {
		for _, a := range m.adapters {
			if a.GUID == guid && a.Up && !a.Loopback {
				return "", act(a)
			}
		}
		return "", hns.ElementNotFound
	})
	return code
}

// SetCategory sets the category of an adapter's network, as an administrator or
// the domain does.
func (h Admin) SetCategory(name string, c hns.Category) error {
	return h.adapter(name, func(a *adapter) { a.category = c })
}

// Category returns the category of an adapter's network.
func (h Admin) Category(name string) (c hns.Category) {
	_ = h.adapter(name, func(a *adapter) { c = a.category })
	return c
}
