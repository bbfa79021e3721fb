package plugin

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "update the golden files")

const dualText = "FLANNEL_NETWORK=10.5.0.0/16,10.6.0.0/16,10.5.0.0/16\nFLANNEL_SUBNET=10.5.72.1/24\nFLANNEL_IPV6_NETWORK=2001:cafe:42::/56\n" +
	"FLANNEL_IPV6_SUBNET=2001:cafe:42:1::1/64\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n"

// TestDelegate compares the delegate's configuration with golden files, which also
// serve as examples.
func TestDelegate(t *testing.T) {
	const kubeFlannel = `{"cniVersion":"0.3.1","name":"cbr0","type":"flannel","delegate":{"hairpinMode":true,"isDefaultGateway":true}}`
	for name, c := range map[string]struct{ system, env, conf string }{
		"kube-flannel":       {"linux", envText, kubeFlannel},
		"dual-stack":         {"linux", dualText, kubeFlannel},
		"bare":               {"linux", envText, `{"name":"net"}`},
		"macvlan":            {"linux", envText, `{"cniVersion":"1.0.0","name":"net","delegate":{"type":"macvlan","master":"eth1","mtu":1400,"ipMasq":true}}`},
		"keys in other case": {"linux", envText, `{"cniVersion":"1.0.0","name":"net","delegate":{"MTU":9000,"IsGateway":false,"ipmasq":true}}`},
		"ipam": {"linux", envText, `{"cniVersion":"1.1.0","name":"net","ipam":{"dataDir":"/x","routes":[{"dst":"0.0.0.0/0","gw":"10.5.72.9"}],"ranges":[]},
			"runtimeConfig":{"mac":"0a:00:00:00:00:01","portMappings":[{"hostPort":80}]},"capabilities":{"mac":true}}`},
		"windows":            {"windows", envText, `{"name":"cbr0"}`},
		"windows dual-stack": {"windows", dualText, `{"cniVersion":"0.3.0","name":"cbr0","delegate":{"type":"sdnbridge","optionalFlags":{"enableDualStack":true}}}`},
		"windows overlay, IPv6 too": {"windows", dualText, `{"cniVersion":"0.3.0","name":"flannel.4096","delegate":{"type":"win-overlay","endpointMacPrefix":"0E-2A","ipMasq":true,
			"policies":[{"name":"EndpointPolicy","value":{"Type":"OutBoundNAT"}}]},"runtimeConfig":{"dns":{"servers":["10.96.0.10"]}}}`},
	} {
		conf, err := parseConf([]byte(c.conf))
		if err != nil {
			t.Fatal(name, err)
		}
		subnet, err := parseSubnet([]byte(c.env))
		if err != nil {
			t.Fatal(name, err)
		}
		d, err := newDelegate(conf, subnet, c.system)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var got bytes.Buffer
		if err := json.Indent(&got, d.bytes(), "", "  "); err != nil {
			t.Fatal(name, err)
		}
		got.WriteByte('\n')
		path := filepath.Join("testdata", strings.NewReplacer(" ", "-", ",", "").Replace(name)+".json")
		if *update {
			if err := os.WriteFile(path, got.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(strings.ReplaceAll(string(want), "\r", ""), got.String()); diff != "" {
			t.Errorf("%s: run with -update if this is intended\n%s", name, diff)
		}
	}
}

// With --ip-masq, something on the node masquerades the pods' packets, and only once:
// flanneld on Linux, the delegate on Windows. Without the flag, only Linux delegates
// do, as with the upstream plugin. The configuration takes precedence.
func TestMasquerading(t *testing.T) {
	for _, c := range []struct {
		system   string
		flag     bool // flanneld's --ip-masq
		delegate string
		want     string
	}{
		{"linux", true, `{}`, "false"},
		{"linux", false, `{}`, "true"},
		{"windows", true, `{}`, "true"},
		{"windows", false, `{}`, "false"},
		{"linux", true, `{"ipMasq":true}`, "true"},
		{"windows", true, `{"ipMasq":false}`, "false"},
	} {
		conf, err := parseConf([]byte(`{"name":"n","delegate":` + c.delegate + `}`))
		if err != nil {
			t.Fatal(err)
		}
		subnet, err := parseSubnet([]byte(envText))
		if err != nil {
			t.Fatal(err)
		}
		subnet.ipMasq = c.flag
		d, err := newDelegate(conf, subnet, c.system)
		if got := string(d.conf["ipMasq"]); err != nil || got != c.want {
			t.Errorf("%+v: ipMasq %s, %v", c, got, err)
		}
	}
}

func TestBadConfigurations(t *testing.T) {
	subnet, err := parseSubnet([]byte(envText))
	if err != nil {
		t.Fatal(err)
	}
	for raw, code := range map[string]uint{
		`{`:                                               types.ErrDecodingFailure,
		`[]`:                                              types.ErrDecodingFailure,
		`{"name":"n","delegate":"bridge"}`:                types.ErrDecodingFailure,
		`{"name":"n","delegate":{"name":"x"}}`:            types.ErrInvalidNetworkConfig,
		`{"name":"n","delegate":{"ipam":{}}}`:             types.ErrInvalidNetworkConfig,
		`{"name":"n","delegate":{"IPAM":null}}`:           types.ErrInvalidNetworkConfig,
		`{"name":"n","delegate":{"type":7}}`:              types.ErrInvalidNetworkConfig,
		`{"name":"n","delegate":{"type":""}}`:             types.ErrInvalidNetworkConfig,
		`{"name":"n","delegate":{"type":"../../bin/sh"}}`: types.ErrInvalidNetworkConfig,
		`{"name":"n","delegate":{"type":"flannel"}}`:      types.ErrInvalidNetworkConfig,
		`{"name":"n","ipam":{"routes":"none"}}`:           types.ErrInvalidNetworkConfig,
	} {
		c, err := parseConf([]byte(raw))
		if err == nil {
			_, err = newDelegate(c, subnet, "linux")
		}
		if got := codeOf(err); got != code {
			t.Errorf("%s: code %d (%v), want %d", raw, got, err, code)
		}
	}
}

func TestParseSubnet(t *testing.T) {
	for text, want := range map[string]string{
		"":      "FLANNEL_NETWORK and FLANNEL_SUBNET are missing; FLANNEL_MTU is missing; FLANNEL_IPMASQ is missing",
		"hello": "FLANNEL_NETWORK and FLANNEL_SUBNET",
		strings.Replace(envText, "FLANNEL_MTU=1450\n", "", 1):             "FLANNEL_MTU is missing",
		strings.Replace(envText, "1450", "-55", 1):                        "FLANNEL_MTU",
		strings.Replace(envText, "true", "perhaps", 1):                    "FLANNEL_IPMASQ",
		strings.Replace(envText, "FLANNEL_IPMASQ=true\n", "", 1):          "FLANNEL_IPMASQ is missing",
		strings.Replace(envText, "FLANNEL_SUBNET", "SUBNET", 1):           "FLANNEL_SUBNET is missing",
		strings.Replace(envText, "FLANNEL_NETWORK", "#", 1):               "FLANNEL_NETWORK is missing",
		strings.Replace(envText, "10.5.72.1/24", "10.5.72.1", 1):          "FLANNEL_SUBNET",
		strings.Replace(envText, "10.5.72.1/24", "2001::1/64", 1):         "IPv4",
		strings.Replace(envText, "10.5.0.0/16", "10.5.0.0/16,,", 1):       "FLANNEL_NETWORK",
		strings.Replace(dualText, "2001:cafe:42:1::1/64", "1.2.3.4/8", 1): "IPv6",
	} {
		if _, err := parseSubnet([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	quoted := "FLANNEL_NETWORK=\"10.5.0.0/16\"\r\nFLANNEL_SUBNET='10.5.72.1/24'\n  FLANNEL_MTU=0\nFLANNEL_IPMASQ=1\nOTHER=x\n" +
		"FLANNEL_FORMER_SUBNET=10.5.71.0/24,x,10.5.70.0/24"
	if s, err := parseSubnet([]byte(quoted)); err != nil || len(s.families) != 1 || !s.ipMasq || join(s.former) != "10.5.71.0/24, 10.5.70.0/24" {
		t.Errorf("%+v, %v", s, err)
	}
}
