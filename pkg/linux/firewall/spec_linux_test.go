package firewall

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"flannel/pkg/firewall"
)

func rulesText(chains []firewall.Chain) string {
	var b strings.Builder
	for _, c := range chains {
		b.WriteString(c.Table + ": -A " + c.Parent + " " + jumpTo(c) + "\n")
		for _, r := range c.Rules {
			b.WriteString(c.Table + ": -A " + c.Name + " " + spec(r, c.Comment) + "\n")
		}
	}
	return b.String()
}

const golden4 = `nat: -A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG
nat: -A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -m comment --comment "flanneld masq" -j RETURN
nat: -A FLANNEL-POSTRTG -s 10.5.34.0/24 -d 10.5.0.0/16 -m comment --comment "flanneld masq" -j RETURN
nat: -A FLANNEL-POSTRTG -s 10.5.0.0/16 -d 10.5.34.0/24 -m comment --comment "flanneld masq" -j RETURN
nat: -A FLANNEL-POSTRTG ! -s 10.5.0.0/16 -d 10.5.34.0/24 -m comment --comment "flanneld masq" -j RETURN
nat: -A FLANNEL-POSTRTG -s 10.5.0.0/16 ! -d 224.0.0.0/4 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully
nat: -A FLANNEL-POSTRTG ! -s 10.5.0.0/16 -d 10.5.0.0/16 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully
filter: -A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD
filter: -A FLANNEL-FWD -s 10.5.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT
filter: -A FLANNEL-FWD -d 10.5.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT
`

const golden6 = `nat: -A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG
nat: -A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -m comment --comment "flanneld masq" -j RETURN
nat: -A FLANNEL-POSTRTG -s 2001:cafe:42:1::/64 -d 2001:cafe:42::/56 -m comment --comment "flanneld masq" -j RETURN
nat: -A FLANNEL-POSTRTG -s 2001:cafe:42::/56 -d 2001:cafe:42:1::/64 -m comment --comment "flanneld masq" -j RETURN
nat: -A FLANNEL-POSTRTG ! -s 2001:cafe:42::/56 -d 2001:cafe:42:1::/64 -m comment --comment "flanneld masq" -j RETURN
nat: -A FLANNEL-POSTRTG -s 2001:cafe:42::/56 ! -d ff00::/8 -m comment --comment "flanneld masq" -j MASQUERADE
nat: -A FLANNEL-POSTRTG ! -s 2001:cafe:42::/56 -d 2001:cafe:42::/56 -m comment --comment "flanneld masq" -j MASQUERADE
`

func TestRules(t *testing.T) {
	forward := golden4[strings.Index(golden4, "filter:"):]
	for _, c := range []struct {
		name   string
		config firewall.Config
		family firewall.Family
		want   string
	}{
		{"IPv4, all", firewall.Config{Masquerade: true, Forward: true, RandomFully: true}, v4, golden4},
		{"IPv4, ports in order", firewall.Config{Masquerade: true, Forward: true}, v4, strings.ReplaceAll(golden4, " --random-fully", "")},
		{"IPv4, forward only", firewall.Config{Forward: true}, v4, forward},
		{"IPv6, masquerade only", firewall.Config{Masquerade: true}, v6, golden6},
		{"family off", firewall.Config{Masquerade: true, Forward: true}, firewall.Family{}, ""},
		{"nothing wanted", firewall.Config{RandomFully: true}, v4, ""},
	} {
		if diff := cmp.Diff(c.want, rulesText(firewall.Rules(c.config, c.family))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}
