package hnstest

import (
	"fmt"
	"net/netip"
	"slices"

	"flannel/internal/test/hnstest/api"
	"flannel/pkg/windows/hns"
)

// This file has the methods of hns.Stack for DNS. As on Windows, the servers of each family
// are set apart. The simulated DHCP gives only servers of IPv4.

// SetDNSRegistration makes the machine register an adapter's addresses in DNS.
func (m *Machine) SetDNSRegistration(index int, on bool) error {
	what := fmt.Sprintf("%s registration=%t", m.familyText(index, false), on)
	_, code := m.call("SetInterfaceDnsSettings", []string{what}, true, func() (string, hns.Code) {
		a := m.adapter(index)
		if a == nil {
			return "", hns.ElementNotFound
		}
		a.Registers = on
		m.notifyStack(InterfaceChange)
		return "", 0
	})
	return api.Problem("SetInterfaceDnsSettings", code)
}

// SetDNS sets the DNS servers of an adapter, by a call for each family in the list.
func (m *Machine) SetDNS(index int, servers []netip.Addr) error {
	for _, v6 := range []bool{false, true} {
		ofFamily := slices.DeleteFunc(slices.Clone(servers), func(s netip.Addr) bool { return s.Is6() != v6 })
		if len(ofFamily) == 0 {
			continue
		}
		if code := m.ChangeDNS(index, v6, ofFamily); code != 0 {
			return api.Problem("SetInterfaceDnsSettings", code)
		}
	}
	return nil
}

// ChangeDNS calls SetInterfaceDnsSettings, for programs in Wine, too: it replaces the DNS
// servers of one family by these servers of the family, which may be none.
func (m *Machine) ChangeDNS(index int, v6 bool, servers []netip.Addr) hns.Code {
	_, code := m.call("SetInterfaceDnsSettings", []string{fmt.Sprint(servers)}, true, func() (string, hns.Code) {
		a := m.adapter(index)
		if a == nil {
			return "", hns.ElementNotFound
		}
		others := slices.DeleteFunc(slices.Clone(a.DNS), func(s netip.Addr) bool { return s.Is6() == v6 })
		if v6 {
			a.DNS = slices.Concat(others, servers)
		} else {
			a.DNS, a.dnsGiven = slices.Concat(servers, others), false
		}
		m.notifyStack(InterfaceChange)
		return "", 0
	})
	return code
}

// ManualDNS returns the DNS servers that SetDNS, or the test, has set on an adapter.
func (m *Machine) ManualDNS(index int) (servers []netip.Addr, err error) {
	_, code := m.call("RegQueryValueEx", []string{m.familyText(index, false) + " NameServer"}, false, func() (string, hns.Code) {
		a := m.adapter(index)
		if a == nil {
			return "", hns.ElementNotFound
		}
		servers = slices.DeleteFunc(slices.Clone(a.DNS), func(s netip.Addr) bool { return a.dnsGiven && s.Is4() })
		return "", 0
	})
	return servers, api.Problem("RegQueryValueEx", code)
}
