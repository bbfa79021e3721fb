package subnet

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
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
	} {
		got, root := ParseConfig([]byte(c.raw))
		if err := root.Err(); err != nil {
			t.Errorf("%s: %v", c.raw, err)
		}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s:\n got %v\nwant %v", c.raw, got, c.want)
		}
	}
}

// TestBadConfigs holds what people are told, to the letter: every problem of a text at once.
func TestBadConfigs(t *testing.T) {
	for _, c := range []struct{ raw, want string }{
		{`{}`, `Network: missing; give the pods' network, or set EnableIPv4 to false`},
		{`{"EnableIPv6": true}`, `Network: missing; give the pods' network, or set EnableIPv4 to false
IPv6Network: missing; give the pods' network, or set EnableIPv6 to false`},
		{`{"EnableIPv4": false}`, `EnableIPv4: false, and so is EnableIPv6; enable at least one of them`},
		{`{"Network": "10.5.0.0/16"`, `line 1, column 25: unexpected end of JSON input`},
		{`[]`, `this is a list; write an object, {…}`},
		{`{"Network": "10.5.0.0"}`, `Network: "10.5.0.0" is an address; add the network's length, as in 10.5.0.0/16`},
		{`{"Network": "127.0.0.0/8"}`, `Network: 127.0.0.0/8 holds loopback addresses (127.0.0.0/8); use a private network`},
		{`{"Network": "224.0.0.0/8"}`, `Network: 224.0.0.0/8 holds multicast addresses (224.0.0.0/4); use a private network`},
		{`{"Network": "169.254.7.0/24"}`, `Network: 169.254.7.0/24 holds link-local addresses (169.254.0.0/16); use a private network`},
		{`{"Network": "255.255.0.0/16"}`, `Network: 255.255.0.0/16 holds broadcast addresses (255.0.0.0/8); use a private network`},
		{`{"Network": "0.0.0.0/0"}`, `Network: 0.0.0.0/0 holds unspecified addresses (0.0.0.0/8); use a private network`},
		{`{"Network": "64.0.0.0/2"}`, `Network: 64.0.0.0/2 holds loopback addresses (127.0.0.0/8); use a private network`},
		{`{"Network": "::ffff:10.5.0.0/112"}`, `Network: ::ffff:10.5.0.0/112 is IPv4 in IPv6 form; write 10.5.0.0/16`},
		{`{"Network": "fd05::/56"}`, `Network: fd05::/56 is an IPv6 network; give it as IPv6Network`},
		{`{"Network": "10.5.0.0/29"}`, `Network: 10.5.0.0/29 is too small for four subnets; use /28 or shorter`},
		{`{"Network": "10.5.0.0/16", "SubnetLen": 31}`, `SubnetLen: 31 is above 30; use 1 to 30`},
		{`{"Network": "10.5.0.0/16", "SubnetLen": 17, "SubnetMin": "10.5.77.0"}`, `SubnetLen: 17 leaves fewer than four subnets in 10.5.0.0/16; use 18 to 30`},
		{`{"Network": "10.5.0.0/16", "SubnetLen": "24", "SubnetMin": "10.5.0.16"}`, `SubnetLen: "24" is a string; remove the quotes`},
		{`{"Network": "10.5.0.0/16", "SubnetMin": "10.6.0.0", "SubnetMax": "10.5.9.1"}`,
			`SubnetMin: 10.6.0.0 is outside Network 10.5.0.0/16; use a subnet in it
SubnetMax: 10.5.9.1 is not where a subnet of length 24 begins; use 10.5.9.0`},
		{`{"Network": "10.5.0.0/16", "SubnetMin": "10.5.9.0", "SubnetMax": "10.5.3.0"}`,
			`SubnetMax: 10.5.3.0 is below SubnetMin 10.5.9.0; raise it, or lower SubnetMin`},
		{`{"Network": "10.5.0.0/16", "SubnetMax": "10.5.0.0"}`,
			`SubnetMax: 10.5.0.0 is below SubnetMin 10.5.1.0; raise it, or lower SubnetMin`},
		{`{"Network": "10.5.0.0/16", "SubnetMin": "::ffff:10.5.9.0", "SubnetMax": "fd05::"}`,
			`SubnetMin: ::ffff:10.5.9.0 is IPv4 in IPv6 form; write 10.5.9.0
SubnetMax: fd05:: is of the other address family than Network`},
		{`{"Network": "10.5.0.0/16", "Backend": "vxlan"}`, `Backend: "vxlan" is a string; use an object, {…}`},
		// A misconfigured dual-stack cluster, as bad as can be.
		{`{"Network": "ten/8", "SubnetLen": 24.5, "SubnetMin": 10, "EnableNFTables": "true", "EnableIPv6": true, "IPv6Network": "10.5.0.0/16",
			"IPv6SubnetLen": 127, "IPv6SubnetMin": "10.5.0.0", "IPv6SubnetMax": "fd05::/64", "Backend": {"Type": 7}}`,
			`Network: "ten/8" is no network; use one like 10.5.0.0/16 or fd05::/56
SubnetLen: 24.5 is not written as a whole number; use 1 to 30
SubnetMin: 10 is a number; use an address in quotes
IPv6Network: 10.5.0.0/16 is an IPv4 network; give it as Network
IPv6SubnetLen: 127 is above 126; use 1 to 126
IPv6SubnetMin: 10.5.0.0 is of the other address family than IPv6Network
IPv6SubnetMax: "fd05::/64" is a network; use an address, without the length
EnableNFTables: "true" is a string; remove the quotes
Backend.Type: 7 is a number; use a string, in quotes`},
	} {
		checkBad(t, c.raw, c.want)
	}
	for prefix, want := range map[string]string{
		"::/0": "unspecified addresses (::/128)", "::/96": "unspecified addresses (::/128)", "::1/124": "unspecified addresses (::/128)",
		"ff02::/64": "multicast addresses (ff00::/8)", "fe80::/64": "link-local addresses (fe80::/10)", "::ffff:0:0/90": "",
		"fd05::/125": "",
	} {
		raw := `{"EnableIPv4": false, "EnableIPv6": true, "IPv6Network": "` + prefix + `"}`
		_, root := ParseConfig([]byte(raw))
		if err := root.Err(); err == nil || !strings.Contains(err.Error(), want) {
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
	if d := cmp.Diff(want, err.Error()); d != "" {
		t.Errorf("%s\n%s", raw, d)
	}
}

func TestConfigWarnings(t *testing.T) {
	_, root := ParseConfig([]byte(`{"Netwrok": "10.0.0.0/8", "Network": "10.4.0.0/16", "network": "10.5.0.0/16", "IPv6Network": "fd05::/56", "IPv6SubnetLen": 64,
		"Backend": {"Type": "vxlan", "Tpye": "x"}}`))
	want := []string{
		"Netwrok: unknown key, did you mean Network?",
		"network: given 2 times, the last one counts",
		"IPv6Network: without effect, because EnableIPv6 is false",
		"Backend.Tpye: unknown key, did you mean Type?",
	}
	if d := cmp.Diff(want, root.Warnings()); d != "" {
		t.Error(d)
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

func TestCanBecome(t *testing.T) {
	base := `{"Network": "10.5.0.0/16", "Backend": {"Type": "vxlan"}}`
	for _, c := range []struct{ next, want string }{
		{base, ""},
		{`{"Network": "10.5.0.0/16", "Backend": {"Type": "host-gw"}, "EnableNFTables": true, "SubnetMin": "10.5.9.0", "SubnetMax": "10.5.11.0"}`, ""},
		{`{"Network": "10.6.0.0/16"}`, "Network changed from 10.5.0.0/16 to 10.6.0.0/16: this takes effect only when flanneld is restarted"},
		{`{"Network": "10.5.0.0/16", "SubnetLen": 25}`, "SubnetLen changed from 24 to 25: this takes effect only when flanneld is restarted"},
		{`{"EnableIPv4": false, "EnableIPv6": true, "IPv6Network": "fd05::/56"}`,
			"EnableIPv4 changed from true to false, EnableIPv6 changed from false to true: this takes effect only when flanneld is restarted"},
	} {
		was, _ := ParseConfig([]byte(base))
		next, root := ParseConfig([]byte(c.next))
		if root.Err() != nil {
			t.Fatal(root.Err())
		}
		if err := was.CanBecome(next); (err == nil) != (c.want == "") || err != nil && err.Error() != c.want {
			t.Errorf("%s: %v\nwant %s", c.next, err, c.want)
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
