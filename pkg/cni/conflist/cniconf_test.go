package conflist

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"flannel/internal/test/logtest"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func spec(plugin string, api int) Spec {
	pfx := netip.MustParsePrefix
	s := Spec{Plugin: plugin, API: api, Network: "flannel.4096", Cluster: []netip.Prefix{pfx("10.244.0.0/16")}, Services: []netip.Prefix{pfx("10.96.0.0/12")},
		Management: []netip.Prefix{pfx("192.168.1.0/24")}, ManagementIP: netip.MustParseAddr("192.168.1.10"),
		DNS: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, Search: []string{"svc.cluster.local"}, LoopbackDSR: true, MACPrefix: "0E-2A"}
	if strings.HasSuffix(plugin, "bridge") {
		s.Network = "cbr0"
	}
	return s
}

// The golden files were compared with the plugins' own samples.
func TestMake(t *testing.T) {
	dual := spec("sdnbridge", 2)
	dual.Cluster = append(dual.Cluster, netip.MustParsePrefix("fd00:244::/48"))
	dual.Services = append(dual.Services, netip.MustParsePrefix("fd00:96::/112"))
	dual.ManagementIP6 = netip.MustParseAddr("fd00:99::2")
	dual.LoopbackDSR = false
	list := spec("win-overlay", 2)
	list.List, list.DNS, list.Search = true, nil, nil
	list.NATExceptions = []netip.Prefix{netip.MustParsePrefix("172.16.0.0/12")}
	small := spec("win-overlay", 2)
	small.EncapOverhead = 90
	smallSDN := spec("sdnbridge", 2)
	smallSDN.EncapOverhead = 90
	for name, s := range map[string]Spec{
		"win-overlay.mtu": small, "sdnbridge.mtu": smallSDN,
		"win-overlay.v1": spec("win-overlay", 1), "win-overlay.v2": spec("win-overlay", 2), "win-overlay.list": list,
		"win-bridge.v1": spec("win-bridge", 1), "win-bridge.v2": spec("win-bridge", 2),
		"sdnoverlay": spec("sdnoverlay", 2), "sdnbridge": spec("sdnbridge", 2), "sdnbridge.dual": dual,
	} {
		got, err := Make(s)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		path := "testdata/" + name + ".json"
		if *update {
			if err := os.WriteFile(path, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(string(want), string(got)); d != "" {
			t.Errorf("%s: run with -update if this is right\n%s", name, d)
		}
	}
}

func TestProblems(t *testing.T) {
	_, err := Make(Spec{Plugin: "bridge"})
	for _, want := range []string{`plugin "bridge"`, "API version 0", "HNS"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %q", err, want)
		}
	}
	if n := strings.Count(err.Error(), "\n") + 1; n != 6 {
		t.Errorf("%d problems, want 6:\n%v", n, err)
	}
	six := spec("win-overlay", 2)
	six.Services = append(six.Services, netip.MustParsePrefix("fd00::/112"))
	all := spec("win-bridge", 2)
	all.NATExceptions = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}
	for want, s := range map[string]Spec{"sdnbridge 2": spec("sdnbridge", 1), "IPv6": six, "0.0.0.0/0": all} {
		if _, err := Make(s); err == nil || !logtest.Names(err.Error(), strings.Fields(want)...) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	without := spec("win-overlay", 1)
	without.ManagementIP = netip.Addr{}
	if _, err := Make(without); err != nil {
		t.Errorf("an overlay of version 1 needs no address: %v", err)
	}
}

func TestDiff(t *testing.T) {
	if !Equal([]byte(`{"a":1,"b":[2]}`), []byte("{\n \"b\": [2], \"a\": 1}\n")) || Equal([]byte(`{"a":1}`), []byte(`{"a":2}`)) || Equal([]byte("x"), []byte("{}")) {
		t.Error("Equal is wrong")
	}
	for _, c := range [][3]string{
		{`{"a":1,"b":2}`, `{"b":2,"a":1}`, "  {\n    \"a\": 1,\n    \"b\": 2\n  }\n"},
		{`{"a":1}`, `{"a":2}`, "  {\n-   \"a\": 1\n+   \"a\": 2\n  }\n"},
		{"edited {", "{}", "- edited {\n+ {}\n"},
		{"", "{}", "- \n+ {}\n"},
	} {
		if d := cmp.Diff(c[2], diff([]byte(c[0]), []byte(c[1]))); d != "" {
			t.Errorf("%q to %q:\n%s", c[0], c[1], d)
		}
	}
	var long strings.Builder
	for i := range 5000 {
		fmt.Fprintln(&long, i)
	}
	if n := strings.Count(diff([]byte(long.String()), []byte("{}")), "\n"); n > maxLines+5 {
		t.Errorf("%d lines", n)
	}
}
