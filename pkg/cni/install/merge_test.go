package install

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// source is kube-flannel's configuration, as in the ConfigMap.
const source = `{
  "name": "cbr0",
  "cniVersion": "0.3.1",
  "plugins": [
    {"type": "flannel", "delegate": {"hairpinMode": true, "isDefaultGateway": true}},
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
`

// What istio-cni and linkerd-cni turn it into: both append a plugin, and istio-cni
// sorts the keys.
const (
	istio = `{
  "cniVersion": "0.3.1",
  "name": "cbr0",
  "plugins": [
    {"delegate": {"hairpinMode": true, "isDefaultGateway": true}, "type": "flannel"},
    {"capabilities": {"portMappings": true}, "type": "portmap"},
    {"kubernetes": {"exclude_namespaces": ["istio-system"], "kubeconfig": "/etc/cni/net.d/ZZZ-istio-cni-kubeconfig"}, "log_level": "info", "name": "istio-cni", "type": "istio-cni"}
  ]
}
`
	linkerd = `{"name":"cbr0","cniVersion":"0.3.1","plugins":[
{"type":"flannel","delegate":{"hairpinMode":true,"isDefaultGateway":true}},{"type":"portmap","capabilities":{"portMappings":true}},
{"name":"linkerd-cni","type":"linkerd-cni","linkerd":{"incoming-proxy-port":4143,"ports-to-redirect":[]}}]}`
)

func parse(t *testing.T, text string) conf {
	t.Helper()
	if text == "" {
		return conf{}
	}
	c, err := parseConf([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// list returns a configuration with plugins, each given as JSON or as its type.
func list(plugins ...string) string {
	for i, p := range plugins {
		if !strings.HasPrefix(p, "{") {
			plugins[i] = `{"type":"` + p + `"}`
		}
	}
	return `{"name":"n","plugins":[` + strings.Join(plugins, ",") + `]}`
}

func TestMerge(t *testing.T) {
	for name, c := range map[string]struct{ base, source, live, want, foreign string }{
		"istio":                       {source, source, istio, istio, "istio-cni"},
		"linkerd":                     {"", source, linkerd, linkerd, "linkerd-cni"},
		"only ours":                   {source, source, source, source, ""},
		"foreign ones everywhere":     {"", list("flannel", "portmap"), list("a", "flannel", "b", "portmap", "c"), list("a", "flannel", "b", "portmap", "c"), "a b c"},
		"one of ours was removed":     {"", list("flannel", "portmap"), list("flannel", "mesh"), list("flannel", "portmap", "mesh"), "mesh"},
		"all of ours were removed":    {"", list("flannel", "portmap"), list("mesh"), list("flannel", "portmap", "mesh"), "mesh"},
		"the source has more":         {list("flannel"), list("flannel", "bandwidth"), list("flannel", "mesh"), list("flannel", "bandwidth", "mesh"), "mesh"},
		"the source has fewer":        {list("flannel", "portmap"), list("flannel"), list("flannel", "portmap", "mesh"), list("flannel", "mesh"), "mesh"},
		"fewer, but no record":        {"", list("flannel"), list("flannel", "portmap", "mesh"), list("flannel", "portmap", "mesh"), "portmap mesh"},
		"the source's order changed":  {list("flannel", "a", "b"), list("flannel", "b", "a"), list("flannel", "a", "mesh", "b"), list("flannel", "b", "mesh", "a"), "mesh"},
		"two of a type":               {list("flannel", "tuning", "tuning"), list("flannel", "tuning"), list("flannel", "tuning", "mesh", "tuning"), list("flannel", "tuning", "mesh"), "mesh"},
		"a second one is not ours":    {"", list("flannel", "tuning"), list("flannel", "tuning", "tuning"), list("flannel", "tuning", "tuning"), "tuning"},
		"a plugin's keys":             {list(`{"type":"flannel","old":1,"delegate":{"mtu":1,"was":2}}`), list(`{"type":"flannel","delegate":{"mtu":2}}`), list(`{"old":1,"type":"flannel","mine":[1],"delegate":{"was":2,"mtu":9,"dns":{}}}`), list(`{"type":"flannel","mine":[1],"delegate":{"mtu":2,"dns":{}}}`), ""},
		"other keys and their values": {`{"name":"n","gone":1,"plugins":[{"type":"flannel"}]}`, `{"name":"m","disableCheck":true,"plugins":[{"type":"flannel"}]}`, `{"x":12345678901234567890.10,"gone":1,"name":"n","plugins":[{"type":"flannel","e":1e2}],"y":{"b":1,"a":2}}`, `{"x":12345678901234567890.10,"name":"m","plugins":[{"type":"flannel","e":1e2}],"y":{"b":1,"a":2},"disableCheck":true}`, ""},
		"a single plugin":             {"", `{"name":"n","type":"flannel","delegate":{"a":1}}`, `{"type":"flannel","name":"n","delegate":{"b":2}}`, `{"type":"flannel","name":"n","delegate":{"b":2,"a":1}}`, ""},
	} {
		merged, foreign := merge(parse(t, c.base), parse(t, c.source), parse(t, c.live))
		got, err := merged.encode()
		if err != nil {
			t.Fatal(err)
		}
		want, err := parse(t, c.want).encode()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" || strings.Join(foreign, " ") != c.foreign {
			t.Errorf("%s: foreign %v, want %s; want (-), got (+):\n%s", name, foreign, c.foreign, diff)
		}
		again, _ := merge(parse(t, c.source), parse(t, c.source), parse(t, string(got)))
		if text, err := again.encode(); err != nil || string(text) != string(got) {
			t.Errorf("%s: merged again it is\n%s (%v), was\n%s", name, text, err, got)
		}
	}
}

func TestParseConf(t *testing.T) {
	for _, text := range []string{"", "{", "null", "[]", "1", `"x"`, "{}", `{"name":"n"}`, `{"plugins":[{"type":"flannel"}]}`, `{"name":"n","plugins":[]}`,
		`{"name":"n","plugins":{}}`, `{"name":"n","plugins":[1]}`, `{"name":"n","plugins":[{}]}`, `{"name":"n","plugins":[{"type":1}]}`, `{"name":1,"plugins":[{"type":"a"}]}`,
		list("flannel") + "x", list("flannel")[1:], list("flannel", "{}")} {
		if c, err := parseConf([]byte(text)); err == nil {
			t.Errorf("%s was accepted, with plugins %v", text, c.types())
		}
	}
	for text, main := range map[string]string{list("a", "flannel"): "flannel", list("bridge", "b"): "bridge", `{"name":"n","type":"flannel"}`: "flannel"} {
		if c := parse(t, text); c.requiredType() != main {
			t.Errorf("%s: the main plugin is %s", text, c.requiredType())
		}
	}
}

// Whatever the live file contains, the merged one can be parsed, has all plugins of
// the source in their order and all foreign ones, and merging it again changes
// nothing.
func FuzzMerge(f *testing.F) {
	for _, live := range []string{istio, linkerd, list("a", "flannel", "b", "portmap"), `{"name":"n","plugins":[{"type":"flannel","type":"x"}],"plugins":[{"type":"y"}]}`} {
		f.Add(list("flannel", "gone"), live)
	}
	f.Fuzz(func(t *testing.T, base, live string) {
		l, err := parseConf([]byte(live))
		if err != nil || l.plugins == nil {
			return
		}
		b, _ := parseConf([]byte(base))
		s := parse(t, source)
		merged, foreign := merge(b, s, l)
		text, err := merged.encode()
		if err != nil {
			t.Fatal(err)
		}
		got, err := parseConf(text)
		if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		ours := got.types()
		for _, kind := range foreign {
			i := slices.Index(ours, kind)
			if kind == "flannel" || kind == "portmap" {
				return // a second one
			}
			ours = slices.Delete(ours, i, i+1)
		}
		if !slices.Equal(ours, s.types()) {
			t.Errorf("plugins %v of which %v are foreign in\n%s", got.types(), foreign, text)
		}
		again, _ := merge(s, s, got)
		if twice, err := again.encode(); err != nil || string(twice) != string(text) {
			t.Errorf("%v: first\n%s\nthen\n%s", err, text, twice)
		}
	})
}
