package subnet

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"flannel/internal/test/logtest"
)

var (
	pfx  = netip.MustParsePrefix
	addr = netip.MustParseAddr
)

func netOf(prefix string, length int, lo, hi string) Network {
	return Network{Prefix: pfx(prefix), SubnetLen: length, Min: addr(lo), Max: addr(hi)}
}

func TestParseConfig(t *testing.T) {
	for _, c := range []struct {
		raw  string
		want Config
	}{
		{`{"Network": "10.5.0.0/16", "Backend": {"Type": "VXLAN", "VNI": 1}}`,
			Config{V4: netOf("10.5.0.0/16", 24, "10.5.1.0", "10.5.255.0"), Backend: "vxlan"}},
		{`{"network": "10.5.3.7/16", "enablenftables": true}`,
			Config{V4: netOf("10.5.0.0/16", 24, "10.5.1.0", "10.5.255.0"), NFTables: true}},
		{`{"Network": "10.0.0.0/8", "SubnetLen": 20, "SubnetMin": "10.10.0.0", "SubnetMax": "10.99.0.0"}`,
			Config{V4: netOf("10.0.0.0/8", 20, "10.10.0.0", "10.99.0.0")}},
		{`{"Network": "10.5.0.0/22"}`, Config{V4: netOf("10.5.0.0/22", 24, "10.5.1.0", "10.5.3.0")}},
		{`{"Network": "10.5.0.0/23"}`, Config{V4: netOf("10.5.0.0/23", 25, "10.5.0.128", "10.5.1.128")}},
		{`{"Network": "10.5.0.16/28"}`, Config{V4: netOf("10.5.0.16/28", 30, "10.5.0.20", "10.5.0.28")}},
		{`{"Network": "10.5.0.0/16", "SubnetMin": "10.5.0.0", "SubnetMax": "10.5.0.0"}`,
			Config{V4: netOf("10.5.0.0/16", 24, "10.5.0.0", "10.5.0.0")}},
		{`{"Network": "10.5.0.0/16", "SubnetLen": null, "IPv6Network": null}`,
			Config{V4: netOf("10.5.0.0/16", 24, "10.5.1.0", "10.5.255.0")}},
		{`{"EnableIPv4": false, "EnableIPv6": true, "IPv6Network": "2001:cafe:42::/56"}`,
			Config{V6: netOf("2001:cafe:42::/56", 64, "2001:cafe:42:1::", "2001:cafe:42:ff::")}},
		{`{"EnableIPv4": false, "EnableIPv6": true, "IPv6Network": "fd05::/62"}`,
			Config{V6: netOf("fd05::/62", 64, "fd05:0:0:1::", "fd05:0:0:3::")}},
		{`{"EnableIPv4": false, "EnableIPv6": true, "IPv6Network": "fd05::/63"}`,
			Config{V6: netOf("fd05::/63", 65, "fd05::8000:0:0:0", "fd05:0:0:1:8000::")}},
		{`{"EnableIPv4": false, "EnableIPv6": true, "IPv6Network": "fd05::30/124"}`,
			Config{V6: netOf("fd05::30/124", 126, "fd05::34", "fd05::3c")}},
		{`{"Network": "10.5.0.0/16", "EnableIPv6": true, "IPv6Network": "fd05::1/48", "IPv6SubnetLen": 56, "IPv6SubnetMin": "fd05:0:0:200::", "IPv6SubnetMax": "fd05:0:0:800::"}`,
			Config{V4: netOf("10.5.0.0/16", 24, "10.5.1.0", "10.5.255.0"), V6: netOf("fd05::/48", 56, "fd05:0:0:200::", "fd05:0:0:800::")}},
		{`{"Network": "10.5.0.0/22", "Guard": "Enforce", "GuardTrial": 0, "GuardSources": ["192.0.2.7", "198.51.100.9/24", "fd00::/64"]}`,
			Config{V4: netOf("10.5.0.0/22", 24, "10.5.1.0", "10.5.3.0"), Guard: GuardEnforce,
				GuardSources: []netip.Prefix{netip.MustParsePrefix("192.0.2.7/32"), netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("fd00::/64")}}},
		{`{"Network": "10.5.0.0/22", "Backend": {"guard": "off", "guardtrial": 7}}`,
			Config{V4: netOf("10.5.0.0/22", 24, "10.5.1.0", "10.5.3.0"), Guard: GuardOff, GuardTrial: 7 * time.Second}},
	} {
		if c.want.Guard == "" {
			c.want.Guard, c.want.GuardTrial = GuardAudit, time.Minute
		}
		got, root := ParseConfig([]byte(c.raw))
		if err := root.Err(); err != nil {
			t.Errorf("%s: %v", c.raw, err)
		}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s:\n got %v\nwant %v", c.raw, got, c.want)
		}
	}
}

// TestBadConfigs holds what people are told: every problem of a text at once, a line each that names key, value and fix.
func TestBadConfigs(t *testing.T) {
	for _, c := range []struct{ raw, want string }{
		{`{}`, `Network: EnableIPv4`},
		{`{"EnableIPv6": true}`, `Network: EnableIPv4
IPv6Network: EnableIPv6`},
		{`{"EnableIPv4": false}`, `EnableIPv4: EnableIPv6`},
		{`{"Network": "10.5.0.0/16"`, `1 25 JSON`},
		{`[]`, ``},
		{`{"Network": "10.5.0.0"}`, `Network: "10.5.0.0" 10.5.0.0/16`},
		{`{"Network": "127.0.0.0/8"}`, `Network: 127.0.0.0/8`},
		{`{"Network": "224.0.0.0/8"}`, `Network: 224.0.0.0/8 224.0.0.0/4`},
		{`{"Network": "169.254.7.0/24"}`, `Network: 169.254.7.0/24 169.254.0.0/16`},
		{`{"Network": "255.255.0.0/16"}`, `Network: 255.255.0.0/16 255.0.0.0/8`},
		{`{"Network": "0.0.0.0/0"}`, `Network: 0.0.0.0/0 0.0.0.0/8`},
		{`{"Network": "64.0.0.0/2"}`, `Network: 64.0.0.0/2 127.0.0.0/8`},
		{`{"Network": "::ffff:10.5.0.0/112"}`, `Network: ::ffff:10.5.0.0/112 IPv4 IPv6 10.5.0.0/16`},
		{`{"Network": "fd05::/56"}`, `Network: fd05::/56 IPv6 IPv6Network`},
		{`{"Network": "10.5.0.0/29"}`, `Network: 10.5.0.0/29 /28`},
		{`{"Network": "10.5.0.0/16", "SubnetLen": 31}`, `SubnetLen: 31 30 1`},
		{`{"Network": "10.5.0.0/16", "SubnetLen": 17, "SubnetMin": "10.5.77.0"}`, `SubnetLen: 17 10.5.0.0/16 18 30`},
		{`{"Network": "10.5.0.0/16", "SubnetLen": "24", "SubnetMin": "10.5.0.16"}`, `SubnetLen: "24"`},
		{`{"Network": "10.5.0.0/16", "SubnetMin": "10.6.0.0", "SubnetMax": "10.5.9.1"}`,
			`SubnetMin: 10.6.0.0 Network 10.5.0.0/16
SubnetMax: 10.5.9.1 24 10.5.9.0`},
		{`{"Network": "10.5.0.0/16", "SubnetMin": "10.5.9.0", "SubnetMax": "10.5.3.0"}`,
			`SubnetMax: 10.5.3.0 SubnetMin 10.5.9.0`},
		{`{"Network": "10.5.0.0/16", "SubnetMax": "10.5.0.0"}`,
			`SubnetMax: 10.5.0.0 SubnetMin 10.5.1.0`},
		{`{"Network": "10.5.0.0/16", "SubnetMin": "::ffff:10.5.9.0", "SubnetMax": "fd05::"}`,
			`SubnetMin: ::ffff:10.5.9.0 IPv4 IPv6 10.5.9.0
SubnetMax: fd05 Network`},
		{`{"Network": "10.5.0.0/16", "Backend": "vxlan"}`, `Backend: "vxlan"`},
		{`{"Network": "10.5.0.0/16", "Guard": "on", "GuardTrial": -1, "GuardSources": ["node7", "::ffff:192.0.2.7", 8]}`, `Guard: "on" off audit enforce
GuardTrial: -1 0 86400
GuardSources[2]: 8
GuardSources: "node7" 192.0.2.0/24
GuardSources: "::ffff:192.0.2.7"`},
		{`{"Network": "10.5.0.0/16", "Guard": "off", "Backend": {"GuardTrial": 7}}`, `Guard: GuardTrial GuardSources Backend`},
		// A misconfigured dual-stack cluster, as bad as can be.
		{`{"Network": "ten/8", "SubnetLen": 24.5, "SubnetMin": 10, "EnableNFTables": "true", "EnableIPv6": true, "IPv6Network": "10.5.0.0/16",
			"IPv6SubnetLen": 127, "IPv6SubnetMin": "10.5.0.0", "IPv6SubnetMax": "fd05::/64", "Backend": {"Type": 7}}`,
			`Network: "ten/8" 10.5.0.0/16 fd05::/56
SubnetLen: 24.5 1 30
SubnetMin: 10
IPv6Network: 10.5.0.0/16 IPv4 Network
IPv6SubnetLen: 127 126 1
IPv6SubnetMin: 10.5.0.0 IPv6Network
IPv6SubnetMax: "fd05::/64"
EnableNFTables: "true"
Backend.Type: 7`},
	} {
		checkBad(t, c.raw, c.want)
	}
	for prefix, want := range map[string]string{
		"::/0": "::/128", "::/96": "::/128", "::1/124": "::/128",
		"ff02::/64": "ff00::/8", "fe80::/64": "fe80::/10", "::ffff:0:0/90": "",
		"fd05::/125": "",
	} {
		raw := `{"EnableIPv4": false, "EnableIPv6": true, "IPv6Network": "` + prefix + `"}`
		_, root := ParseConfig([]byte(raw))
		if err := root.Err(); err == nil || !logtest.Names(err.Error(), strings.Fields(want)...) {
			t.Errorf("%s: %v, want %s", prefix, err, want)
		}
	}
}

func checkBad(t *testing.T, raw, want string) {
	t.Helper()
	_, root := ParseConfig([]byte(raw))
	err := root.Err()
	if err == nil {
		t.Errorf("%s\nis accepted", raw)
		return
	}
	if !logtest.Lines(err.Error(), want) {
		t.Errorf("%s\n%v\nwant lines with\n%s", raw, err, want)
	}
}

func TestConfigWarnings(t *testing.T) {
	_, root := ParseConfig([]byte(`{"Netwrok": "10.0.0.0/8", "Network": "10.4.0.0/16", "network": "10.5.0.0/16", "IPv6Network": "fd05::/56", "IPv6SubnetLen": 64,
		"Backend": {"Type": "vxlan", "Tpye": "x"}}`))
	want := []string{
		"Netwrok: Network",
		"network: 2",
		"IPv6Network: EnableIPv6",
		"Backend.Tpye: Type",
	}
	if got := root.Warnings(); !logtest.Lines(strings.Join(got, "\n"), strings.Join(want, "\n")) {
		t.Errorf("%q\nwant lines with\n%q", got, want)
	}
	if root.Err() != nil {
		t.Error(root.Err())
	}
}

func TestUnderlayInsideTheNetwork(t *testing.T) {
	cfg := Config{V4: netOf("10.0.0.0/8", 24, "10.0.1.0", "10.255.255.0"), V6: netOf("fd05::/56", 64, "fd05:0:0:1::", "fd05:0:0:ff::")}
	for _, c := range []struct {
		underlay, subnet string // of any number, and of this node
		inside           int    // warnings
		refused          bool
	}{
		{"", "10.1.2.0/24", 0, false},
		{"192.168.1.0/24 192.168.1.1/32 fd06::/64 fd06::1/128", "10.1.2.0/24", 0, false},
		{"10.1.0.0/16 10.1.2.3/32", "10.1.3.0/24", 1, false}, // beside our own address
		{"10.1.0.0/16 10.1.2.3/32", "10.1.2.0/24", 1, true},  // with our own address
		{"10.1.2.0/25 10.1.2.3/32", "10.1.2.0/24", 1, true},
		{"10.1.2.128/25 10.9.2.3/32", "10.1.2.0/24", 1, true}, // another network of the link
		{"10.0.0.0/8 10.1.2.3/32", "10.7.0.0/24", 1, false},   // the link is as wide as the pod network
		{"10.1.0.0/16 10.1.2.3/32 fd05:0:0:7::/64 fd05:0:0:7::1/128", "fd05:0:0:7::/64", 2, true},
	} {
		cfg.Underlay = nil
		for _, p := range strings.Fields(c.underlay) {
			cfg.Underlay = append(cfg.Underlay, netip.MustParsePrefix(p))
		}
		err := cfg.CheckUnderlay(netip.Prefix{}, netip.MustParsePrefix(c.subnet))
		if warnings := cfg.InsideNetwork(); (err != nil) != c.refused || len(warnings) != c.inside {
			t.Errorf("%s on %s: %v, warnings %q", c.subnet, c.underlay, err, warnings)
		}
	}
	if got := (Config{Underlay: cfg.Underlay}).InsideNetwork(); got != nil {
		t.Errorf("families that are off: %q", got)
	}
}

// A subnet of this node inside its underlay's network is used, with a warning.
func TestSubnetInsideTheUnderlay(t *testing.T) {
	for _, c := range []struct {
		underlay, subnet string
		warnings         int
	}{
		{"10.0.0.0/8 10.1.2.3/32", "10.5.7.0/24", 1},
		{"10.5.0.0/16 10.5.2.3/32", "10.5.7.0/24", 1},
		{"192.168.1.0/24 192.168.1.1/32", "10.5.7.0/24", 0},
		{"10.5.7.0/24 10.5.7.1/32", "10.5.7.0/24", 0}, // refused by CheckUnderlay
		{"fd05::/32 fd05::1/128", "fd05:0:0:7::/64", 1},
		{"10.0.0.0/8 10.1.2.3/32", "", 0}, // no subnet yet
	} {
		var cfg Config
		for _, p := range strings.Fields(c.underlay) {
			cfg.Underlay = append(cfg.Underlay, pfx(p))
		}
		s := netip.Prefix{}
		if c.subnet != "" {
			s = pfx(c.subnet)
		}
		if got := cfg.InsideUnderlay(s); len(got) != c.warnings {
			t.Errorf("%s on %s: %q", c.subnet, c.underlay, got)
		}
	}
}

func TestCheckNodeAddress(t *testing.T) {
	for _, c := range []struct {
		addrs string
		ok    bool
	}{
		{"192.168.0.1 100.64.0.1 0.1.2.3 240.0.0.1 10.0.0.255 fd00::1 fec0::1 2001:db8::1", true},
		{"0.0.0.0 127.0.0.1 127.255.255.254 169.254.1.1 224.0.0.1 239.1.2.3 255.255.255.255", false},
		{":: ::1 fe80::1 fe80::1%eth0 fd00::1%eth0 ff02::1 ff0e::1 ::ffff:192.168.0.1", false},
	} {
		for _, a := range strings.Fields(c.addrs) {
			if err := CheckNodeAddress(addr(a)); (err == nil) != c.ok || err != nil && !strings.Contains(err.Error(), a) {
				t.Errorf("%s: %v", a, err)
			}
		}
	}
	if CheckNodeAddress(netip.Addr{}) == nil {
		t.Error("no address is accepted")
	}
}

func TestCanBecome(t *testing.T) {
	base := `{"Network": "10.5.0.0/16", "Backend": {"Type": "vxlan"}}`
	for _, c := range []struct{ next, want string }{
		{base, ""},
		{`{"Network": "10.5.0.0/16", "Backend": {"Type": "host-gw"}, "EnableNFTables": true, "SubnetMin": "10.5.9.0", "SubnetMax": "10.5.11.0"}`, ""},
		{`{"Network": "10.6.0.0/16"}`, "Network 10.5.0.0/16 10.6.0.0/16"},
		{`{"Network": "10.5.0.0/16", "SubnetLen": 25}`, "SubnetLen 24 25"},
		{`{"EnableIPv4": false, "EnableIPv6": true, "IPv6Network": "fd05::/56"}`,
			"EnableIPv4 EnableIPv6"},
	} {
		was, _ := ParseConfig([]byte(base))
		next, root := ParseConfig([]byte(c.next))
		if root.Err() != nil {
			t.Fatal(root.Err())
		}
		if err := was.CanBecome(next); (err == nil) != (c.want == "") || err != nil && !logtest.Lines(err.Error(), c.want) {
			t.Errorf("%s: %v\nwant %s", c.next, err, c.want)
		}
	}
	// In a dual-stack cluster, a backend that has only IPv4 is the reason.
	dual := Config{Backend: "vxlan", V6: Network{Prefix: netip.MustParsePrefix("fd05::/56")}}
	four := Config{Backend: "ipip", V4Only: true}
	for _, err := range []error{dual.CanBecome(four), four.CanBecome(dual)} {
		if err == nil || !strings.Contains(err.Error(), "ipip") || strings.Contains(err.Error(), "EnableIPv6") {
			t.Error(err)
		}
	}
}

// FuzzParseConfig: what is accepted can be used without another check.
func FuzzParseConfig(f *testing.F) {
	for _, s := range []string{
		`{"Network": "10.5.0.0/16"}`, `{"Network": "10.5.0.16/28", "SubnetLen": 30, "SubnetMin": "10.5.0.16", "SubnetMax": "10.5.0.28"}`,
		`{"EnableIPv4": false, "EnableIPv6": true, "IPv6Network": "fd05::/124", "IPv6SubnetLen": 126}`,
		`{"Network": "128.0.0.0/1", "SubnetLen": 3}`, `{"Network": "::ffff:10.0.0.0/120"}`, `{"EnableIPv6":true,"IPv6Network":"2000::/3"}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		cfg, root := ParseConfig(raw)
		root.Warnings()
		if root.Err() != nil {
			return
		}
		if !cfg.V4.On() && !cfg.V6.On() {
			t.Error("no family is on")
		}
		for i, n := range []Network{cfg.V4, cfg.V6} {
			if !n.On() {
				continue
			}
			bits := families[i].bits
			if n.Prefix != n.Prefix.Masked() || n.Prefix.Addr().BitLen() != bits || n.SubnetLen < n.Prefix.Bits()+2 || n.SubnetLen > bits-2 {
				t.Errorf("network %v", n)
			}
			for _, a := range []netip.Addr{n.Min, n.Max} {
				if p := netip.PrefixFrom(a, n.SubnetLen); !n.Prefix.Contains(a) || p != p.Masked() {
					t.Errorf("bounds of %v", n)
				}
			}
			if n.Max.Less(n.Min) {
				t.Errorf("min above max: %v", n)
			}
		}
	})
}
