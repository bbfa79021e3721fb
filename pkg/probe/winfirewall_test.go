package probe

import (
	"testing"

	"flannel/internal/test/hnstest"
	"flannel/pkg/doctor"
	"flannel/pkg/windows/hns"
)

// The firewall is read as Windows has it; of the rules, those for the ports of overlays.
func TestReadFirewall(t *testing.T) {
	other := hns.FirewallRule{Name: "Overlay traffic", Enabled: true, Allow: true, Protocol: hns.UDP, Ports: "4000-5000", Profiles: hns.PublicProfile}
	n := newNode(t, overlay())
	reads := func(when string, want string, rules int) {
		t.Helper()
		s := n.read()
		verdicts(t, when, s, map[string]string{"FL520": want})
		if got := len(s.Windows.Firewall.Value.Rules); got != rules {
			t.Errorf("%s: rules %+v", when, s.Windows.Firewall.Value.Rules)
		}
	}
	reads("without rules", "warn: Public 4789", 0)
	off, dns := other, other
	off.Enabled, dns.Ports = false, "53"
	n.m.Admin().AddFirewallRule(off)
	n.m.Admin().AddFirewallRule(dns)
	reads("with a rule that is off, and one for another port", "warn: Public 4789", 0)
	n.m.Admin().AddFirewallRule(other)
	reads("with a rule of another program", "ok: traffic", 1)
	n.m.Turn(func(k *hnstest.Knobs) { k.FirewallBlocksAll = true })
	reads("blocking all", "warn: Public", 1)
	n.m.Turn(func(k *hnstest.Knobs) { k.FirewallOff = true })
	reads("off", "ok: Public", 1)
	n.m.Fail(hnstest.Fault{Func: "INetFwPolicy2.CurrentProfileTypes", Code: hns.RPCNoEndpoint})
	reads("without an answer", "unknown: 0x800706d9", 0)
	if f := n.read().Windows.Firewall; f.Known || f.Absent {
		t.Errorf("%+v", f)
	}
	n = newNode(t, bridge())
	verdicts(t, "a bridge", n.read(), map[string]string{"FL520": string(doctor.Skipped)})
}
