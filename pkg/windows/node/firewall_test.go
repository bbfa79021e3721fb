package node

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"flannel/internal/test/hnstest"
	"flannel/internal/test/logtest"
	"flannel/pkg/dataplane"
	"flannel/pkg/windows/hns"
)

// firewallOf opens the firewall of a simulated machine.
func firewallOf(m *hnstest.Machine) func() (*hns.FirewallClient, error) {
	return func() (*hns.FirewallClient, error) { return hns.NewFirewallClient(m, firewallLimit), nil }
}

// portsAllowed returns the ports of the rules of flanneld's name.
func portsAllowed(m *hnstest.Machine) (ports []string) {
	for _, r := range m.Admin().FirewallRules() {
		if r.Name == hns.VXLANRuleName && r.Allow && r.Enabled && r.Profiles == hns.AllProfiles {
			ports = append(ports, r.Ports)
		}
	}
	return ports
}

// An overlay's port is allowed, a changed one instead of the former, and the rule is gone after cleanup. A bridge needs none.
func TestFirewallRule(t *testing.T) {
	m := hnstest.NewFor(t)
	var log logtest.Log
	for _, c := range []struct {
		kind dataplane.Kind
		want []string
	}{
		{dataplane.L2Bridge{}, nil}, {dataplane.Overlay{}, []string{"4789"}}, {dataplane.Overlay{}, []string{"4789"}},
		{dataplane.Overlay{Port: 8472}, []string{"8472"}},
	} {
		allowVXLAN(t.Context(), log.Logger(), dataplane.Device{Kind: c.kind}, firewallOf(m))
		if got := portsAllowed(m); !slices.Equal(got, c.want) {
			t.Errorf("%+v: allows %q", c.kind, got)
		}
	}
	if n := log.Count("cause=" + causePortAllowed); n != 2 {
		t.Errorf("logged\n%s", &log)
	}
	for _, dryRun := range []bool{true, false} {
		if removed := removeRule(t.Context(), log.Logger(), dryRun, firewallOf(m)); len(removed) != 1 || len(portsAllowed(m)) == 0 == dryRun {
			t.Errorf("dry run %t: removed %q", dryRun, removed)
		}
	}
	if removed := removeRule(t.Context(), log.Logger(), false, firewallOf(m)); len(removed) != 0 {
		t.Errorf("removed %q", removed)
	}
}

// A firewall that refuses, or hangs, is one warning, and takes no longer than the limit.
func TestFirewallSilent(t *testing.T) {
	for name, fault := range map[string]hnstest.Fault{
		"refuses": {Func: "INetFwRules._NewEnum", Code: hns.RPCNoEndpoint}, "hangs": {Func: "INetFwRules._NewEnum", Hang: true},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := hnstest.New()
			var log logtest.Log
			m.Fail(fault)
			began := time.Now()
			allowVXLAN(t.Context(), log.Logger(), dataplane.Device{Kind: dataplane.Overlay{}}, firewallOf(m))
			if took := time.Since(began); took > firewallLimit || log.Count("cause="+causeFirewallUnknown, "level=WARN") != 1 {
				t.Errorf("%s: %s, logged\n%s", name, took, &log)
			}
			removeRule(t.Context(), slog.New(slog.DiscardHandler), false, firewallOf(m))
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if began = time.Now(); name == "hangs" {
				allowVXLAN(ctx, log.Logger(), dataplane.Device{Kind: dataplane.Overlay{}}, firewallOf(m))
				if took := time.Since(began); took > time.Second {
					t.Errorf("the command's limit of a second: %s", took)
				}
			}
			if err := m.Close(); err != nil { // which ends calls that hang
				t.Error(err)
			}
			synctest.Wait()
		})
	}
}
