package daemon

import (
	"net/netip"
	"slices"
	"testing"

	"flannel/pkg/underlay"
	"flannel/subnet"
)

// A node publishes its own address if the others are told another one, and those that
// the operator gives; none that the others would reject.
func TestTunnelSources(t *testing.T) {
	const own, own6, other = "192.168.100.1", "fd00:100::1", "203.0.113.1"
	for name, test := range map[string]struct {
		own4, public4, own6, public6 string
		operator                     subnet.PublicIPs
		backend                      string
		given, want                  []string
		warnings                     int
	}{
		"the usual node":       {own4: own, public4: own, own6: own6, public6: own6},
		"another public IP":    {own4: own, public4: other, own6: own6, public6: own6, want: []string{own}},
		"another in the store": {own4: own, public4: own, own6: own6, public6: own6, operator: subnet.PublicIPs{Overwritten6: true}, want: []string{own6}},
		"NAT":                  {own4: own, public4: other, given: []string{"203.0.113.2"}, want: []string{"203.0.113.2", own}},
		"listed itself":        {own4: own, public4: other, given: []string{own}, want: []string{own}},
		"no such family":       {own4: own, public4: own, operator: subnet.PublicIPs{Overwritten6: true}},
		"in the pod network":   {own4: "10.5.200.1", public4: other},
		"link-local":           {own4: own, public4: own, own6: "fe80::1", public6: own6},
		"useless":              {own4: own, public4: own, given: []string{"10.5.0.1", "127.0.0.1"}, warnings: 2},
		"another backend":      {own4: own, public4: own, backend: "host-gw", given: []string{other}, want: []string{other}, warnings: 1},
	} {
		n := &node{host: host{operator: test.operator}, config: subnet.Config{Backend: "vxlan", V4: subnet.Network{Prefix: netip.MustParsePrefix("10.5.0.0/16")}}}
		if test.backend != "" {
			n.config.Backend = test.backend
		}
		n.host.link = underlay.Link{V4: addr(test.own4), PublicV4: addr(test.public4), V6: addr(test.own6), PublicV6: addr(test.public6)}
		got, warnings := n.tunnelSources(addrs(test.given))
		if !slices.Equal(got, addrs(test.want)) || len(warnings) != test.warnings {
			t.Errorf("%s: %v, want %v; %d warnings: %q", name, got, test.want, test.warnings, warnings)
		}
	}
}

// addr parses an address; "" is the zero Addr.
func addr(text string) netip.Addr { a, _ := netip.ParseAddr(text); return a }

func addrs(texts []string) (all []netip.Addr) {
	for _, text := range texts {
		all = append(all, addr(text))
	}
	return all
}
