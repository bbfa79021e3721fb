package main

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"flannel/backend"
	"flannel/pkg/dataplane"
	"flannel/pkg/underlay"
	"flannel/subnet"
)

// required are the options without which a backend refuses its configuration.
var required = map[string]string{
	"ipsec":     `,"PSK":"` + strings.Repeat("0123456789abcdef", 6) + `"`,
	"extension": `,"PreStartupCommand":"cat","SubnetAddCommand":"tee /dev/null"`,
}

// FuzzNetConf: a configuration that is accepted makes devices that the system can make, and a node that can join.
func FuzzNetConf(f *testing.F) {
	for _, s := range []string{
		`{"Network":"10.0.0.0/10"}`,
		`{"Network":"10.5.0.0/16","Backend":{"Type":"VXLAN","VNI":16777215,"Port":65535,"MTU":1400,"GBP":true,"DirectRouting":true}}`,
		`{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd05::/48","Backend":{"Type":"vxlan","VNI":4096,"MTU":1349}}`,
		`{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd05::/48","EnableNFTables":true,"Backend":{"Type":"alloc"}}`,
		`{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd05::/48","Backend":{"Type":"wireguard","Mode":"auto","MTU":1340}}`,
		`{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","VNI":4096,"Port":4789,"MacPrefix":"0E-2B","Name":"vxlan0"}}`,
		`{"Network":"10.5.0.0/16","Backend":{"Type":"host-gw","DNSServerList":"10.0.0.1, fd00::1"}}`,
	} {
		f.Add([]byte(s))
	}
	for _, kind := range backend.Kinds() {
		raw := fmt.Appendf(nil, `{"Network":"10.5.0.0/16","Backend":{"Type":%q%s}}`, kind.Name, required[kind.Name])
		if _, _, _, err := backend.ParseConfig("linux", raw); (err == nil) != (kind.Refused == "") {
			f.Errorf("%s: %v", raw, err) // its devices would never be checked
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		for _, os := range []string{"linux", "windows"} {
			checkNode(t, os, raw)
		}
	})
}

// checkNode checks the node that joins with a configuration, unless the configuration is refused.
func checkNode(t *testing.T, os string, raw []byte) {
	cfg, maker, _, err := backend.ParseConfig(os, raw)
	if err != nil {
		return
	}
	eth0 := underlay.Link{Name: "eth0", Index: 2, MTU: 1500, V4: netip.MustParseAddr("192.0.2.1"), V6: netip.MustParseAddr("2001:db8::1")}
	eth0.PublicV4, eth0.PublicV6 = eth0.V4, eth0.V6
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
		t.Errorf("%s: the first subnet: %v", os, err)
	}
	links := dataplane.Links{}
	for _, d := range b.Devices(local) {
		if !possible(d, cfg.V6.On()) {
			t.Errorf("%s: impossible device of kind %s: %+v", os, dataplane.KindName(d.Kind), d)
		}
		links[d.Name] = dataplane.Link{MAC: d.MAC, Key: dataplane.PublicKey{1}}
	}
	if _, err := b.Describe(local, links); err != nil || b.MTU() < dataplane.MinMTU(cfg.V6.On()) || b.MTU() > 1500 {
		t.Errorf("%s: MTU %d, %v", os, b.MTU(), err)
	}
}

// possible reports whether the system can make a device. A kind that it does not know is impossible.
func possible(d dataplane.Device, v6 bool) bool {
	tunnel := func(t dataplane.Tunnel) bool {
		return len(d.Name) <= 15 && t.MTU >= dataplane.MinMTU(v6) && t.MTU <= 1500 && len(t.Addr) > 0 && t.Parent != ""
	}
	switch k := d.Kind.(type) {
	case dataplane.Existing:
		return true
	case dataplane.VXLAN:
		return tunnel(k.Tunnel) && d.MAC.Unicast() && k.Local.IsValid() && k.VNI > 0 && k.VNI < 1<<24
	case dataplane.WireGuard:
		return tunnel(k.Tunnel) && k.Port > 0
	case dataplane.IPIP:
		return tunnel(k.Tunnel) && k.Local.Is4()
	case dataplane.TUN:
		return tunnel(k.Tunnel) && k.Local.Is4() && k.Port > 0
	case dataplane.IPsec:
		return k.Local.Is4() && k.ID.Is4() && k.Subnet.IsValid() && len(k.Secret.Reveal()) >= 96 && k.Proposal != ""
	case dataplane.Commands:
		return strings.TrimSpace(k.SubnetAdd+k.PostStartup) != ""
	case dataplane.Overlay: // a network of HNS, which gives MTU and MAC itself
		return d.Name != "" && len(k.Subnets) > 0 && k.VNI >= 4096 && k.VNI < 1<<24
	case dataplane.L2Bridge:
		return d.Name != "" && len(k.Subnets) > 0
	}
	return false
}
