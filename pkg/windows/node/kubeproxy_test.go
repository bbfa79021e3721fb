package node

import (
	"net/netip"
	"strings"
	"testing"
)

func TestFlags(t *testing.T) {
	overlay := KubeProxy{Minor: 33, Network: "flannel.4096", VIP: ip("10.244.1.2"), DSR: true, Cluster: []netip.Prefix{pfx("10.244.0.0/16")}}
	older, without, gated := overlay, overlay, overlay
	older.Minor, without.Minor, without.DSR = 32, 32, false
	gated.Minor, gated.Gates = 30, []string{"A=true", "B=false"}
	current := gated
	current.Minor = 0
	bridge := KubeProxy{Minor: 36, Network: "cbr0", DSR: true, Cluster: []netip.Prefix{pfx("10.244.0.0/16"), pfx("fd00:244::/48")}}
	const common = "--network-name=flannel.4096 --enable-dsr=true --source-vip=10.244.1.2 --cluster-cidr=10.244.0.0/16"
	for name, c := range map[string]struct {
		p    KubeProxy
		want string
	}{
		"overlay":         {overlay, common},
		"with a gate":     {older, common + " --feature-gates=WinDSR=true"},
		"HNS without DSR": {without, strings.Replace(common, "dsr=true", "dsr=false", 1)},
		"other gates":     {gated, common + " --feature-gates=A=true,B=false,WinDSR=true"},
		"current":         {current, common + " --feature-gates=A=true,B=false"},
		"bridge":          {bridge, "--network-name=cbr0 --enable-dsr=true --root-hnsendpoint-name=cbr0_ep --cluster-cidr=10.244.0.0/16,fd00:244::/48"},
	} {
		if got := strings.Join(c.p.Flags(), " "); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	if len(gated.Gates) != 2 {
		t.Error("Flags changed the given gates")
	}
}

func TestParseMinor(t *testing.T) {
	for text, want := range map[string]int{"v1.33.1": 33, "1.33": 33, "Kubernetes v1.32.0\r\n": 32, "Kubernetes v1.36.3-rc.1+abc": 36, "v1.9": 9} {
		if got, err := ParseKubeMinor(text); err != nil || got != want {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "v2.0.0", "v1", "v1.x", "kube-proxy", "v1.33.1 v1.20"} {
		if got, err := ParseKubeMinor(text); err == nil {
			t.Errorf("%q was parsed as 1.%d", text, got)
		}
	}
}
