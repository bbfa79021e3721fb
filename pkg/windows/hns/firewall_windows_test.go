package hns_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"flannel/internal/test/hnstest"
	"flannel/internal/test/hnstest/wine"
	"flannel/pkg/windows/hns"
)

// By COM, the firewall is that of the machine.
func TestFirewall(t *testing.T) {
	m := hnstest.NewFor(t)
	wine.Play(t, m)
	calls, err := hns.OpenFirewall()
	if err != nil {
		t.Fatal(err)
	}
	for _, knobs := range []hnstest.Knobs{{}, {FirewallOff: true}, {FirewallBlocksAll: true}} {
		m.Turn(func(k *hnstest.Knobs) { *k = knobs })
		want := []hns.FirewallProfile{{Type: hns.PublicProfile, On: !knobs.FirewallOff, BlocksAll: knobs.FirewallBlocksAll}}
		if got, err := calls.FirewallProfiles(); err != nil || !slices.Equal(got, want) {
			t.Errorf("profiles: %+v, %v; want %+v", got, err, want)
		}
	}
	rules := []hns.FirewallRule{
		rule("4789"),
		{Name: "blocks", Enabled: true, Protocol: hns.AnyProtocol, Profiles: hns.DomainProfile | hns.PublicProfile},
		{Name: "Übertragung, off", Allow: true, Protocol: hns.UDP, Ports: "53,8000-8010", Profiles: hns.PrivateProfile},
	}
	for _, r := range rules {
		if err := calls.AddFirewallRule(r); err != nil {
			t.Fatal(err)
		}
	}
	limited := hns.FirewallRule{Name: "program", Enabled: true, Allow: true, Protocol: hns.UDP, Ports: "*", Profiles: hns.AllProfiles, Limited: true}
	tcp := hns.FirewallRule{Name: "TCP", Enabled: true, Allow: true, Protocol: 6, Ports: "443", Profiles: hns.AllProfiles}
	m.Admin().AddFirewallRule(limited)
	m.Admin().AddFirewallRule(tcp)
	if got, err := calls.FirewallRules(); err != nil || !slices.Equal(got, append(slices.Clone(rules), limited)) {
		t.Errorf("rules: %+v, %v", got, err)
	}
	m.Turn(func(k *hnstest.Knobs) { k.UnreadRule = "blocks" })
	if got, err := calls.FirewallRules(); err != nil || !slices.Contains(got, hns.UnreadFirewallRule("blocks")) || len(got) != 4 {
		t.Errorf("with a rule that cannot be read: %+v, %v", got, err)
	}
	m.Turn(func(k *hnstest.Knobs) { k.UnreadRule = "" })
	for range 2 {
		if err := calls.RemoveFirewallRule("blocks"); err != nil {
			t.Error(err)
		}
	}
	if got := m.Admin().FirewallRules(); !slices.Equal(got, []hns.FirewallRule{rules[0], rules[2], limited, tcp}) {
		t.Errorf("rules left: %+v", got)
	}
	for function, call := range map[string]func() error{
		"INetFwPolicy2.CurrentProfileTypes": func() error { _, err := calls.FirewallProfiles(); return err },
		"INetFwRules._NewEnum":              func() error { _, err := calls.FirewallRules(); return err },
		"INetFwRules.Add":                   func() error { return calls.AddFirewallRule(rules[0]) },
		"INetFwRules.Remove":                func() error { return calls.RemoveFirewallRule("program") },
	} {
		m.Fail(hnstest.Fault{Func: function, Code: hns.RPCNoEndpoint})
		e := (*hns.Error)(nil)
		if err := call(); !errors.As(err, &e) || e.Code != hns.RPCNoEndpoint {
			t.Errorf("%s: %v", function, err)
		}
		m.Heal()
	}
	c := hns.NewFirewallClient(calls, time.Minute)
	if changed, err := c.AllowVXLAN(t.Context(), 4790); err != nil || !changed || !slices.Contains(m.Admin().FirewallRules(), rule("4790")) {
		t.Errorf("allow: %t, %v, %+v", changed, err, m.Admin().FirewallRules())
	}
}
