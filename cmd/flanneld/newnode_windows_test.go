package main

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"flannel/internal/test/eventually"
	"flannel/internal/test/hnstest"
	"flannel/internal/test/hnstest/wine"
	"flannel/internal/test/logtest"
	"flannel/pkg/dataplane"
	"flannel/pkg/windows/hns"
	"flannel/pkg/windows/node"
	"flannel/subnet"
)

// machine is a simulated one, which programs of this process reach as they would Windows.
func machine(t *testing.T) *hnstest.Machine {
	t.Helper()
	m := hnstest.NewFor(t)
	wine.Play(t, m)
	return m
}

// TestNewNode takes a node's steps with its own commands: prepare, the daemon's network, the source VIP, another subnet,
// cleanup.
func TestNewNode(t *testing.T) {
	m := machine(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "run", "subnet.env")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	do := func(args ...string) (int, string, string) {
		t.Helper()
		return flanneldSays(t.Context(), append([]string{"--subnet-file=" + file, "--iface=Ethernet"}, args...)...)
	}
	if code, out, problems := do("prepare", "--network-mode=sideways"); code != exitUsage || !logtest.Names(problems, `"sideways"`, "overlay", "l2bridge") {
		t.Errorf("a mode that is none: %d %s %s", code, out, problems)
	}
	code, out, problems := do("prepare", "--network-mode=overlay", "--json")
	if p := read[prepareAnswer](t, out); code != exitOK || !p.Made || p.Network != "External" || p.Interface != "vEthernet (Ethernet)" || p.Problem != "" ||
		!slices.Equal(p.Addresses, []netip.Prefix{hnstest.HostAddr}) {
		t.Fatalf("prepare: %d %+v\n%s", code, p, problems)
	}
	if code, out, _ := do("prepare", "--network-mode=overlay", "--json"); code != exitOK || read[prepareAnswer](t, out).Made {
		t.Errorf("a second time: %d %s", code, out)
	}
	if rules := m.Admin().FirewallRules(); len(rules) != 1 || rules[0].Ports != "4789" {
		t.Errorf("the firewall's rules: %+v", rules)
	}
	host := m.Admin().Adapter("vEthernet (Ethernet)")

	join(t, dir, file, "10.244.1.0/24")
	vips := "--data-dir=" + filepath.Join(dir, "networks")
	code, out, problems = do("source-vip", vips, "--json", "--kube-proxy-version=Kubernetes v1.32.4", "--kube-proxy-feature-gates=A=true")
	if v := read[vipAnswer](t, out); code != exitOK || !v.Needed || v.DSR == nil || !*v.DSR || v.Addr != netip.MustParseAddr("10.244.1.2") || v.Network != "flannel.4096" ||
		strings.Join(v.Flags, " ") != "--network-name=flannel.4096 --enable-dsr=true --source-vip=10.244.1.2 --cluster-cidr=10.244.0.0/16 --feature-gates=A=true,WinDSR=true" {
		t.Fatalf("source-vip: %d %s %s", code, out, problems)
	}
	// The daemon keeps it: after the node joined again, there is one of the new subnet.
	join(t, dir, file, "10.244.9.0/24")
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	ctx, stop := context.WithCancel(t.Context())
	kept := make(chan error)
	go func() { kept <- node.KeepVIP(ctx, file, usualDataDir(), log) }()
	eventually.True(t, "the source VIP follows", func() bool {
		v, err := node.ReadVIP(node.VIPFile(file))
		return err == nil && v.Addr == netip.MustParseAddr("10.244.9.2")
	})
	if err := m.Admin().DeleteEndpoint("source-vip"); err != nil {
		t.Fatal(err)
	}
	stop()
	if err := <-kept; err != nil {
		t.Error(err)
	}
	if code, out, _ := do("source-vip", vips); code != exitOK ||
		!logtest.Names(out, "10.244.9.2", "10.244.9.0/24", "--network-name=flannel.4096 --enable-dsr=true --source-vip=10.244.9.2 ") || len(m.Admin().Endpoints()) != 1 {
		t.Errorf("source-vip: %d %s, endpoints %s", code, out, m.Admin().Endpoints())
	}
	if now := m.Admin().Adapter("vEthernet (Ethernet)"); now.Index != host.Index {
		t.Errorf("the host's interface was made anew: %+v, %+v", host, now)
	}
	if left := reservations(t, dir); !slices.Equal(left, []string{"10.244.9.2"}) {
		t.Errorf("reserved are %q", left)
	}
	if _, out, _ := do("cleanup", "--dry-run", "--json"); len(read[cleanupAnswer](t, out).Removed) != 6 || len(m.Admin().Networks()) != 2 || len(m.Admin().FirewallRules()) != 1 {
		t.Errorf("would remove %s", out)
	}
	code, out, problems = do("cleanup")
	if code != exitOK || len(m.Admin().Networks())+len(m.Admin().Endpoints())+len(reservations(t, dir))+len(m.Admin().FirewallRules()) > 0 {
		t.Errorf("cleanup: %d %s %s", code, out, problems)
	}
	if code, out, _ := do("cleanup", "--json"); code != exitOK || len(read[cleanupAnswer](t, out).Removed) > 0 {
		t.Errorf("a second cleanup: %d %s", code, out)
	}
}

// join makes the network and the subnet file as the daemon does.
func join(t *testing.T, dir, file, own string) {
	t.Helper()
	plane, err := openPlane(dataplane.Options{Log: slog.New(slog.NewTextHandler(t.Output(), nil)), StateDir: filepath.Dir(file)})
	if err != nil {
		t.Fatal(err)
	}
	defer plane.Close()
	dev := dataplane.Device{Name: "flannel.4096", Kind: dataplane.Overlay{VNI: 4096, Network: dataplane.Network{Parent: "Ethernet", Local: hnstest.HostAddr.Addr(),
		Subnets: []netip.Prefix{netip.MustParsePrefix(own)}}}}
	eventually.True(t, "the network is there", func() bool { _, err := plane.Ensure(t.Context(), []dataplane.Device{dev}); return err == nil })
	env := subnet.Env{V4Network: netip.MustParsePrefix("10.244.0.0/16"), V4Subnet: netip.MustParsePrefix(own), MTU: 1450}
	if _, err := subnet.WriteEnv(file, env); err != nil {
		t.Fatal(err)
	}
}

func reservations(t *testing.T, dir string) (all []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "networks", "flannel.4096", "10.*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		all = append(all, filepath.Base(f))
	}
	return all
}

// A firewall that hangs is a warning: prepare does the rest.
func TestPrepareFirewallHangs(t *testing.T) {
	m := machine(t)
	m.Fail(hnstest.Fault{Func: "INetFwRules._NewEnum", Hang: true})
	t.Cleanup(m.Heal) // before the machine is closed
	file := filepath.Join(t.TempDir(), "subnet.env")
	code, out, problems := flanneldSays(t.Context(), "--subnet-file="+file, "--iface=Ethernet", "prepare", "--network-mode=overlay", "--json")
	if p := read[prepareAnswer](t, out); code != exitOK || !p.Made || p.Problem != "" || !strings.Contains(problems, "firewall-unknown") {
		t.Errorf("prepare: %d %+v\n%s", code, p, problems)
	}
}

// A switch that makes the host's network public: prepare restores the category by COM and says so.
func TestPrepareCategory(t *testing.T) {
	m := machine(t)
	m.Turn(func(k *hnstest.Knobs) { k.LosesCategory = true })
	if err := m.Admin().SetCategory("Ethernet", hns.Private); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "subnet.env")
	code, out, problems := flanneldSays(t.Context(), "--subnet-file="+file, "--iface=Ethernet", "prepare", "--network-mode=overlay", "--json")
	if p := read[prepareAnswer](t, out); code != exitOK || !p.Made || p.Problem != "" || !strings.Contains(problems, "cause=category-restored") {
		t.Errorf("prepare: %d %+v\n%s", code, p, problems)
	}
	if c := m.Admin().Category("vEthernet (Ethernet)"); c != hns.Private {
		t.Errorf("the network is %s", c)
	}
}
