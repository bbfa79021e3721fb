package hnstest

import (
	"slices"

	"flannel/internal/test/hnstest/api"
	"flannel/pkg/windows/hns"
)

// firewall is the machine's Windows Firewall. The zero value has one active
// profile, the public one, which blocks what no rule allows.
type firewall struct {
	rules []hns.FirewallRule // for inbound packets
}

// The methods of hns.Firewall. The log has them by the names of Windows' COM interfaces. The third argument of m.call
// says whether they change something.

// FirewallProfiles returns the active profiles. See Knobs.FirewallOff and
// FirewallBlocksAll.
func (m *Machine) FirewallProfiles() (profiles []hns.FirewallProfile, err error) {
	_, code := m.call("INetFwPolicy2.CurrentProfileTypes", nil, false, func() (string, hns.Code) {
		profiles = []hns.FirewallProfile{{Type: hns.PublicProfile, On: !m.knobs.FirewallOff, BlocksAll: m.knobs.FirewallBlocksAll}}
		return "", 0
	})
	return profiles, api.Problem("INetFwPolicy2.CurrentProfileTypes", code)
}

// FirewallRules returns the rules for UDP and for any protocol. See
// Knobs.UnreadRule.
func (m *Machine) FirewallRules() (rules []hns.FirewallRule, err error) {
	_, code := m.call("INetFwRules._NewEnum", nil, false, func() (string, hns.Code) {
		rules = slices.DeleteFunc(slices.Clone(m.firewall.rules), func(r hns.FirewallRule) bool {
			return r.Protocol != hns.UDP && r.Protocol != hns.AnyProtocol
		})
		for i, r := range rules {
			if r.Name == m.knobs.UnreadRule {
				rules[i] = hns.UnreadFirewallRule(r.Name) // one of which only the name is known
			}
		}
		return "", 0
	})
	return rules, api.Problem("INetFwRules._NewEnum", code)
}

// AddFirewallRule adds a rule, also if one has its name.
func (m *Machine) AddFirewallRule(r hns.FirewallRule) error {
	_, code := m.call("INetFwRules.Add", []string{r.Name, r.Ports}, true, func() (string, hns.Code) {
		if r.Name == "" {
			return "", api.InvalidArg
		}
		m.firewall.rules = append(m.firewall.rules, r)
		return "", 0
	})
	return api.Problem("INetFwRules.Add", code)
}

// RemoveFirewallRule removes the first rule with the name. A missing rule is
// not an error.
func (m *Machine) RemoveFirewallRule(name string) error {
	_, code := m.call("INetFwRules.Remove", []string{name}, true, func() (string, hns.Code) {
		i := slices.IndexFunc(m.firewall.rules, func(r hns.FirewallRule) bool { return r.Name == name })
		if i < 0 {
			return "", hns.FileNotFound
		}
		m.firewall.rules = slices.Delete(m.firewall.rules, i, i+1)
		return "", 0
	})
	if code == hns.FileNotFound {
		return nil
	}
	return api.Problem("INetFwRules.Remove", code)
}

// AddFirewallRule adds a rule.
func (h Admin) AddFirewallRule(r hns.FirewallRule) {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	h.m.firewall.rules = append(h.m.firewall.rules, r)
}

// FirewallRules returns all rules.
func (h Admin) FirewallRules() []hns.FirewallRule {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	return slices.Clone(h.m.firewall.rules)
}
