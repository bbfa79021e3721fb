package probe

import (
	"context"
	"slices"

	"flannel/pkg/doctor"
	"flannel/pkg/windows/hns"
)

// readFirewall reads the Windows Firewall. Of the rules, it keeps those for a port that an
// overlay of HNS has, or may have.
func (m machine) readFirewall(ctx context.Context) (doctor.WinFirewall, error) {
	profiles, rules, err := m.firewall.State(ctx)
	if err != nil {
		return doctor.WinFirewall{}, err
	}
	f := doctor.WinFirewall{Profiles: []doctor.FirewallProfile{}, Rules: []doctor.FirewallRule{}}
	names := map[int]string{hns.DomainProfile: "Domain", hns.PrivateProfile: "Private", hns.PublicProfile: "Public"}
	for _, p := range profiles {
		f.Profiles = append(f.Profiles, doctor.FirewallProfile{Name: names[p.Type], Type: p.Type, On: p.On, BlocksAll: p.BlocksAll, Allows: p.Allows})
	}
	ports := []int{hns.DefaultVxlanPort} // of an overlay that names no port
	networks, err := m.client.Networks(ctx)
	if err != nil {
		return doctor.WinFirewall{}, err
	}
	for _, n := range networks {
		if n.VxlanPort != 0 {
			ports = append(ports, int(n.VxlanPort))
		}
	}
	for _, r := range rules {
		rule := doctor.FirewallRule{Name: r.Name, Allow: r.Allow, Ports: r.Ports, Profiles: r.Profiles, Limited: r.Limited}
		if r.Enabled && slices.ContainsFunc(ports, rule.HasPort) {
			f.Rules = append(f.Rules, rule)
		}
	}
	return f, nil
}
