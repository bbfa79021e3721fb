package hnstest

import (
	"encoding/json"

	"flannel/internal/test/hnstest/api"
	"flannel/pkg/windows/hns"
)

// natSettings returns the settings of the policies OutBoundNAT of an endpoint.
func (t *object) natSettings() (all []map[string]json.RawMessage) {
	var policies []hns.Policy
	t.Read("Policies", &policies)
	for _, p := range policies {
		var settings map[string]json.RawMessage
		if p.Type == "OutBoundNAT" && json.Unmarshal(p.Settings, &settings) == nil {
			all = append(all, settings)
		}
	}
	return all
}

// natRefused reports whether a new endpoint has more policies OutBoundNAT than the knob accepts.
func (m *Machine) natRefused(t *object) bool {
	most := m.knobs.MaxOutBoundNAT
	return most > 0 && len(t.natSettings()) > most
}

// portsExhausted reports whether the policies of endpoints have taken all ports.
func (m *Machine) portsExhausted() bool {
	if m.knobs.PortPool == 0 || m.knobs.version().Features().DSR {
		return false
	}
	taken := 0
	for _, t := range m.objects[api.EndpointKind] {
		for _, settings := range t.natSettings() {
			if settings["Destinations"] != nil {
				taken++
			}
		}
	}
	return taken >= m.knobs.PortPool
}
