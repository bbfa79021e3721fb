package plugin

import (
	"encoding/json"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
)

// For any input of the runtime, the delegate gets the node's subnets and the
// network's name, or newDelegate returns an error.
func FuzzConfiguration(f *testing.F) {
	for _, raw := range []string{"", "{", "null", "[]", `{"name":"cbr0","cniVersion":"1.1.0","delegate":{"type":"macvlan","MTU":1},"ipam":{"Routes":[null],"ranges":7}}`,
		`{"name":"n","delegate":null,"ipam":null,"runtimeConfig":{"a":[]},"prevResult":{}}`, `{"name":"n","delegate":{"Type":"x","NAME":1}}`} {
		f.Add([]byte(raw), true)
	}
	f.Fuzz(func(t *testing.T, raw []byte, dual bool) {
		c, err := parseConf(raw)
		if err != nil {
			return
		}
		text := envText
		if dual {
			text = dualText
		}
		subnet, err := parseSubnet([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		for _, system := range []string{"linux", "windows"} {
			d, err := newDelegate(c, subnet, system)
			if err != nil {
				continue
			}
			var read struct{ Type string }
			if err := json.Unmarshal(d.bytes(), &read); err != nil {
				t.Fatalf("%v: %s", err, d.bytes())
			}
			got := d.subnets()
			if len(got) == 0 || got[0] != subnet.families[0].subnet || d.conf.text("name") != c.Name || checkType(d.Type) != nil {
				t.Errorf("%s", d.bytes())
			}
			if at, err := c.attachment(system, &skel.CmdArgs{ContainerID: "pod1", Netns: c.Name, IfName: "eth0"}); err == nil && at.id == "" {
				t.Errorf("%+v", at)
			}
		}
	})
}

func FuzzSubnetFile(f *testing.F) {
	for _, text := range []string{"", envText, dualText, "FLANNEL_NETWORK=,\nFLANNEL_SUBNET=1.2.3.4/33\nFLANNEL_MTU=x\nFLANNEL_IPMASQ=", "\x00=\xff"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := parseSubnet(text)
		if err != nil {
			return
		}
		if len(s.families) == 0 || len(s.families) > 2 || s.mtu < 0 {
			t.Errorf("%+v", s)
		}
		for _, f := range s.families {
			if !f.subnet.IsValid() || f.subnet != f.subnet.Masked() || len(f.networks) == 0 {
				t.Errorf("%+v", f)
			}
		}
	})
}

// A saved file is read back unchanged. Any other content is an error, or has the
// name of a plugin as its type.
func FuzzSaved(f *testing.F) {
	for _, raw := range []string{"", "{", "null", `{"type":"bridge","name":"cbr0"}`, `{"type":"bridge","name":"cbr0","flannelIfName":"eth0","prevResult":{"ips":null}}`, `{"TYPE":"a/b"}`} {
		f.Add([]byte(raw), "0.3.1")
	}
	f.Fuzz(func(t *testing.T, raw []byte, version string) {
		_, _ = decodeResult(version, raw) // must not panic
		d, err := parseSaved(raw)
		if err != nil {
			return
		}
		if checkType(d.Type) != nil {
			t.Errorf("type %q", d.Type)
		}
		d.subnets()
		if again, err := parseSaved(d.bytes()); err != nil || again.Type != d.Type || again.version() != d.version() {
			t.Errorf("%v: %s", err, d.bytes())
		}
		if lower := d.highestBelow([]string{"0.3.0", version, "0.2.0"}); lower != "" {
			d.setVersion(lower)
		}
	})
}
