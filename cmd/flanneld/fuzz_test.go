package main

import (
	"net/netip"
	"testing"

	"flannel/backend"
	"flannel/pkg/dataplane"
	"flannel/pkg/underlay"
	"flannel/subnet"
)

// FuzzNetConf: a configuration that is accepted makes devices that the kernel can make, and a node that can join.
func FuzzNetConf(f *testing.F) {
	for _, s := range []string{
		`{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}`, `{"Network":"10.5.0.0/16","Backend":{"Type":"host-gw"}}`,
		`{"Network":"10.5.0.0/16","Backend":{"Type":"VXLAN","VNI":16777215,"Port":65535,"MTU":1400,"GBP":true,"DirectRouting":true}}`,
		`{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd05::/48","Backend":{"Type":"vxlan","VNI":4096,"MTU":1349}}`,
		`{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd05::/48","EnableNFTables":true,"Backend":{"Type":"alloc"}}`,
	} {
		f.Add([]byte(s))
	}
	eth0 := underlay.Link{Name: "eth0", Index: 2, MTU: 1500, V4: netip.MustParseAddr("192.0.2.1"), V6: netip.MustParseAddr("2001:db8::1")}
	f.Fuzz(func(t *testing.T, raw []byte) {
		cfg, maker, _, err := parseConfig(raw)
		if err != nil {
			return
		}
		b, _, err := maker(backend.Node{Underlay: eth0, V4: cfg.V4.On(), V6: cfg.V6.On()})
		if err != nil {
			return
		}
		local := subnet.Lease{Backend: cfg.Backend}
		if cfg.V4.On() {
			local.V4 = subnet.Endpoint{Subnet: netip.PrefixFrom(cfg.V4.Min, cfg.V4.SubnetLen), PublicIP: eth0.V4}
		}
		if cfg.V6.On() {
			local.V6 = subnet.Endpoint{Subnet: netip.PrefixFrom(cfg.V6.Min, cfg.V6.SubnetLen), PublicIP: eth0.V6}
		}
		if err := subnet.Fits(cfg, &local); err != nil {
			t.Errorf("the first subnet: %v", err)
		}
		links := dataplane.Links{}
		for _, d := range b.Devices(local) {
			can := false
			switch k := d.Kind.(type) {
			case dataplane.Existing:
				can = true
			case dataplane.VXLAN:
				can = len(d.Name) <= 15 && k.MTU >= 576 && k.MTU <= 1500 && d.MAC.Unicast() && k.VNI > 0 && k.VNI < 1<<24
			case dataplane.Overlay: // a network of HNS, which gives MTU and MAC itself
				can = d.Name != "" && len(k.Subnets) > 0 && k.VNI >= 4096 && k.VNI < 1<<24
			case dataplane.L2Bridge:
				can = d.Name != "" && len(k.Subnets) > 0
			}
			if !can {
				t.Errorf("a device that cannot be: %+v", d)
			}
			links[d.Name] = dataplane.Link{MAC: d.MAC}
		}
		if _, err := b.Describe(local, links); err != nil || b.MTU() < 576 || b.MTU() > 1500 {
			t.Errorf("MTU %d, %v", b.MTU(), err)
		}
	})
}
