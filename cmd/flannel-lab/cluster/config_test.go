package cluster

import (
	"os"
	"strings"
	"testing"
)

// Pods have the server for names that kubelet is told, so it has the address family of the cluster's Services.
func TestClusterDNS(t *testing.T) {
	for want, o := range map[string]Options{"10.96.0.10": {}, "fd00:96::a": {IPv6Only: true}} {
		if text := o.kubelet(); !strings.Contains(text, `clusterDNS: ["`+want+`"]`) {
			t.Errorf("%+v: no %s in\n%s", o, want, text)
		}
	}
	if text := (Options{Dual: true}).kubelet(); text != (Options{}).kubelet() {
		t.Errorf("with both families, not as with IPv4, the first one:\n%s", text)
	}
	const manifest = "../conformance/coredns.yaml"
	text, err := os.ReadFile(manifest)
	if err != nil {
		t.Fatal(err)
	}
	if want := "clusterIP: " + (Options{}).service(dns).String() + "\n"; !strings.Contains(string(text), want) {
		t.Errorf("%s does not contain %q", manifest, want)
	}
}
