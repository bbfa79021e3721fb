package hns_test

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"flannel/internal/test/hnstest"
	"flannel/pkg/windows/hns"
)

// rule is the rule that flanneld wants for a port.
func rule(ports string) hns.FirewallRule {
	return hns.FirewallRule{Name: hns.VXLANRuleName, Enabled: true, Allow: true, Protocol: hns.UDP, Ports: ports, Profiles: hns.AllProfiles}
}

// There is one rule of the name, with the port, whatever was there before. Rules of others stay. A second time, nothing
// changes.
func TestAllowVXLAN(t *testing.T) {
	other := hns.FirewallRule{Name: "Overlay traffic", Enabled: true, Allow: true, Protocol: hns.UDP, Ports: "4789", Profiles: hns.AllProfiles}
	public, off, blocks := rule("4789"), rule("4789"), rule("4789")
	public.Profiles, off.Enabled, blocks.Allow = hns.PublicProfile, false, false
	for name, before := range map[string][]hns.FirewallRule{
		"none": nil, "other": {other}, "right": {other, rule("4789")}, "other port": {rule("4790"), other}, "one profile": {public},
		"off": {off}, "blocks": {blocks}, "two": {rule("4789"), rule("4789")}, "two ports": {rule("4790"), other, rule("4789")},
	} {
		t.Run(name, func(t *testing.T) {
			m := hnstest.NewFor(t)
			for _, r := range before {
				m.Admin().AddFirewallRule(r)
			}
			isRight := name == "right"
			c := hns.NewFirewallClient(m, time.Minute)
			if changed, err := c.AllowVXLAN(t.Context(), 4789); err != nil || changed == isRight {
				t.Errorf("changed: %t, %v", changed, err)
			}
			want := []hns.FirewallRule{rule("4789")}
			if slices.Contains(before, other) {
				want = []hns.FirewallRule{other, rule("4789")}
			}
			if got := m.Admin().FirewallRules(); !slices.Equal(got, want) {
				t.Errorf("the rules are %+v", got)
			}
			m.ForgetLog()
			if changed, err := c.AllowVXLAN(t.Context(), 4789); err != nil || changed || len(m.Changes()) > 0 {
				t.Errorf("again: %t, %v, %v", changed, err, m.Changes())
			}
			if removed, err := c.RemoveVXLANRule(t.Context()); err != nil || !removed {
				t.Errorf("removed: %t, %v", removed, err)
			}
			if removed, err := c.RemoveVXLANRule(t.Context()); err != nil || removed {
				t.Errorf("removed again: %t, %v", removed, err)
			}
			if got := m.Admin().FirewallRules(); !slices.Equal(got, want[:len(want)-1]) {
				t.Errorf("after removing, the rules are %+v", got)
			}
		})
	}
}

// That all profiles are read back as their sum is no difference.
func TestAllProfilesReadBack(t *testing.T) {
	m := hnstest.NewFor(t)
	sum := rule("4789")
	sum.Profiles = hns.DomainProfile | hns.PrivateProfile | hns.PublicProfile
	m.Admin().AddFirewallRule(sum)
	if changed, err := hns.NewFirewallClient(m, time.Minute).AllowVXLAN(t.Context(), 4789); err != nil || changed {
		t.Errorf("%t, %v", changed, err)
	}
}

// A firewall that does not answer costs the limit, and one that refuses nothing.
func TestFirewallFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := hnstest.NewFor(t)
		c := hns.NewFirewallClient(m, 10*time.Second)
		m.Fail(hnstest.Fault{Func: "INetFwRules.Add", Code: hns.RPCNoEndpoint})
		if _, err := c.AllowVXLAN(t.Context(), 4789); !errors.Is(err, hns.ErrUnavailable) {
			t.Errorf("refused: %v", err)
		}
		m.Heal()
		for function, hangs := range map[string]struct{ state, allow bool }{
			"INetFwPolicy2.CurrentProfileTypes": {state: true},
			"INetFwRules._NewEnum":              {state: true, allow: true},
			"INetFwRules.Add":                   {allow: true},
		} {
			m.Fail(hnstest.Fault{Func: function, Hang: true})
			began := time.Now()
			_, _, err1 := c.State(t.Context())
			_, err2 := c.AllowVXLAN(t.Context(), 4789)
			if errors.Is(err1, hns.ErrTimeout) != hangs.state || errors.Is(err2, hns.ErrTimeout) != hangs.allow || time.Since(began) > 20*time.Second {
				t.Errorf("%s hangs: %v, %v, after %s", function, err1, err2, time.Since(began))
			}
			m.Heal()
			synctest.Wait()
			_, _ = c.RemoveVXLANRule(t.Context())
		}
	})
}

// After the limit, at most the call that hangs changes something.
func TestFirewallAbandoned(t *testing.T) {
	for function, want := range map[string][]hns.FirewallRule{
		"INetFwRules._NewEnum": {rule("1"), rule("2")},
		"INetFwRules.Remove":   {rule("2")},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := hnstest.NewFor(t)
			c := hns.NewFirewallClient(m, 10*time.Second)
			for name, call := range map[string]func() (bool, error){
				"allow":  func() (bool, error) { return c.AllowVXLAN(t.Context(), 4789) },
				"remove": func() (bool, error) { return c.RemoveVXLANRule(t.Context()) },
			} {
				for _, r := range m.Admin().FirewallRules() {
					_ = m.RemoveFirewallRule(r.Name)
				}
				m.Admin().AddFirewallRule(rule("1"))
				m.Admin().AddFirewallRule(rule("2"))
				m.Fail(hnstest.Fault{Func: function, Hang: true})
				if _, err := call(); !errors.Is(err, hns.ErrTimeout) {
					t.Errorf("%s: %v", name, err)
				}
				m.Heal()
				synctest.Wait()
				if got := m.Admin().FirewallRules(); !slices.Equal(got, want) {
					t.Errorf("%s, %s hung: the rules are %+v", name, function, got)
				}
			}
		})
	}
}

// A rule of our name that cannot be read is replaced.
func TestUnreadRule(t *testing.T) {
	m := hnstest.NewFor(t)
	m.Turn(func(k *hnstest.Knobs) { k.UnreadRule = hns.VXLANRuleName })
	c := hns.NewFirewallClient(m, time.Minute)
	for range 3 {
		if changed, err := c.AllowVXLAN(t.Context(), 4789); err != nil || !changed {
			t.Errorf("%t, %v", changed, err)
		}
	}
	if got := m.Admin().FirewallRules(); !slices.Equal(got, []hns.FirewallRule{rule("4789")}) {
		t.Errorf("the rules are %+v", got)
	}
}
