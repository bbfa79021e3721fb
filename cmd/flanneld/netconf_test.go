package main

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"flannel/backend"
	"flannel/internal/test/logtest"
)

func TestNetConf(t *testing.T) {
	path := filepath.Join(t.TempDir(), "etc", "net-conf.json")
	do := func(args ...string) (int, string, string) {
		t.Helper()
		return flanneldSays(t.Context(), append([]string{"--kube-subnet-mgr", "--net-config-path=" + path, "net-conf"}, args...)...)
	}
	if code, out, problems := do("--network-mode=overlay", "--cluster-cidr=10.8.3.7/16"); code != exitOK || out != path+": written\n" {
		t.Fatalf("%d %s %s", code, out, problems)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	config, _, warnings, err := backend.ParseConfig("windows", raw)
	if err != nil || len(warnings) > 0 || config.Backend != "vxlan" || config.V4.Prefix != netip.MustParsePrefix("10.8.0.0/16") {
		t.Errorf("%s is %+v, %q, %v", raw, config, warnings, err)
	}
	for _, c := range []struct {
		args, want string
		code       int
	}{
		{"--network-mode=Overlay --cluster-cidr=10.8.0.0/16", "kept", exitOK},
		{"--network-mode=l2bridge", "Backend.Type vxlan host-gw Network 10.8.0.0/16 10.244.0.0/16", exitOK},
		{"--network-mode=l2bridge --cluster-cidr=10.8.0.0/16,fd00:8::/48", "IPv6Network fd00:8::/48", exitOK},
		{"--network-mode=l2bridge --cluster-cidr=10.8.0.0/16 --json", `"differs":`, exitOK},
		{"--network-mode=bridge", `"bridge" overlay l2bridge`, exitUsage},
		{"--cluster-cidr=10.8.0.0/16,10.9.0.0/16", "--cluster-cidr: 10.9.0.0/16", exitUsage},
		{"--cluster-cidr=10.8.0.0/30", "Network", exitUsage}, // too small
		{"--cluster-cidr=fd00:8::/48", "IPv6", exitUsage},
		{"--help", "-cluster-cidr", exitOK},
	} {
		code, out, problems := do(strings.Fields(c.args)...)
		if code != c.code || !logtest.Names(out+problems, strings.Fields(c.want)...) {
			t.Errorf("%s: %d, want %d and %q:\n%s%s", c.args, code, c.code, c.want, out, problems)
		}
	}
	if is, err := os.ReadFile(path); err != nil || string(is) != string(raw) {
		t.Errorf("the file was changed: %s, %v", is, err)
	}
	if err := os.WriteFile(path, []byte(`{"Network": "10.8.0.0/16", "Backend": {"Type": "vxlan", "VNI": 1}}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if code, out, problems := do("--json"); code != exitError || !logtest.Names(read[failure](t, out).Problem, "VNI") || !logtest.Names(problems, "VNI") {
		t.Errorf("a configuration that cannot work: %d %s %s", code, out, problems)
	}
}

// In Kubernetes the cluster assigns the subnets, whatever their length; with etcd a node chooses its own.
func TestWhoAssignsSubnets(t *testing.T) {
	for _, kube := range []bool{false, true} {
		o := options{}
		o.Kube.On = kube
		config, _, _, err := o.parseConfig([]byte(`{"Network": "10.8.0.0/16", "Backend": {"Type": "vxlan"}}`))
		if err != nil || config.Assigned != kube {
			t.Errorf("in Kubernetes: %t: assigned: %t, %v", kube, config.Assigned, err)
		}
	}
}
