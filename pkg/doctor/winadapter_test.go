package doctor

import (
	"testing"

	"flannel/pkg/status"
	"flannel/pkg/underlay"
)

// notBound changes a node to one without a switch, whose adapter is of a kind.
func notBound(kind AdapterKind, vlan int, backend string) func(*Snapshot) {
	return func(s *Snapshot) {
		s.Windows.Networks = Known([]HNSNetwork{{Name: "nat", Type: "NAT"}})
		s.Windows.Adapters = Known([]Adapter{{Name: "LAN", Index: 5, Kind: kind, VLAN: vlan}})
		s.Interfaces = Known(underlay.Snapshot{Defaults: []underlay.Default{{Index: 5}}})
		s.Daemon.Value.Report.Node = nil
		if backend != "" {
			s.Daemon.Value.Report.Node = &status.Node{Backend: backend, Underlay: status.Underlay{Index: 5}}
		}
	}
}

// An adapter on which a vSwitch does not work fails before it is bound; where it may work, it is a warning.
func TestAdapterTakesSwitch(t *testing.T) {
	bound := func(kind AdapterKind, vlan int) func(*Snapshot) {
		return func(s *Snapshot) { a := &s.Windows.Adapters.Value[1]; a.Kind, a.VLAN = kind, vlan }
	}
	checkAll(t, healthyWindows, []testCase{
		{"FL523", OK, "Ethernet", func(*Snapshot) {}},
		{"FL523", Warn, "Ethernet 42", bound("", 42)},
		{"FL523", OK, "Ethernet", bound(TeamAdapter, 0)},
		{"FL523", OK, "LAN", notBound("", 0, "")},
		{"FL523", Fail, "LAN 42", notBound("", 42, "")},
		{"FL523", Fail, "LAN", notBound(TunnelAdapter, 0, "vxlan")},
		{"FL523", Fail, "LAN", notBound(WiFiAdapter, 0, "host-gw")},
		{"FL523", Warn, "LAN", notBound(WiFiAdapter, 0, "vxlan")},
		{"FL523", Warn, "LAN", notBound(WiFiAdapter, 0, "")},
		{"FL523", Warn, "LAN", notBound(TeamAdapter, 0, "host-gw")},
		{"FL523", Skipped, "", func(s *Snapshot) { s.Windows.Adapters = Known([]Adapter{}) }},
	})
}
