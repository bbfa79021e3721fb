package node

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"flannel/internal/test/hnstest"
	"flannel/pkg/windows/hns"
	"flannel/subnet"
)

var (
	pfx = netip.MustParsePrefix
	ip  = netip.MustParseAddr
)

// node is a simulated Windows machine with an overlay for 10.244.1.0/24.
type node struct {
	VIPKeeper
	t *testing.T
	m *hnstest.Machine
}

func newNode(t *testing.T) *node {
	t.Helper()
	m, dir := hnstest.New(), t.TempDir()
	n := &node{VIPKeeper{Client: hns.NewClient(m, hns.Timing{}), Stack: m, File: filepath.Join(dir, "run", "source-vip.json"),
		DataDir: filepath.Join(dir, "networks"), Log: slog.New(slog.DiscardHandler)}, t, m}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	n.make("flannel.4096", hns.Overlay, "10.244.1.0/24")
	return n
}

func (n *node) make(name, kind, subnet string) string {
	n.t.Helper()
	s := hns.Subnet{Prefix: pfx(subnet), Gateway: pfx(subnet).Addr().Next()}
	if kind == hns.Overlay {
		s.VSID = 4096
	}
	made, err := n.Client.CreateNetwork(n.t.Context(), hns.Network{Name: name, Type: kind, Adapter: "Ethernet", Subnets: []hns.Subnet{s}})
	if err != nil {
		n.t.Fatal(err)
	}
	return made.ID
}

// holds returns all reservations, endpoints and the published VIP, as text.
func (n *node) holds() string {
	n.t.Helper()
	var lines []string
	files, err := filepath.Glob(filepath.Join(n.DataDir, "*", "*.*.*.*"))
	if err != nil {
		n.t.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			n.t.Fatal(err)
		}
		network := filepath.Base(filepath.Dir(f))
		lines = append(lines, network+"/"+filepath.Base(f)+" "+strings.ReplaceAll(string(text), "\r\n", " "))
	}
	for _, doc := range n.m.Admin().Endpoints() {
		e, err := hns.DecodeEndpoint(doc)
		if err != nil {
			n.t.Fatal(err)
		}
		lines = append(lines, "endpoint "+e.Name+" "+e.IPs[0].String())
	}
	if v, err := ReadVIP(n.File); err != nil {
		n.t.Fatal(err)
	} else if v.Addr.IsValid() {
		lines = append(lines, "published "+v.Addr.String()+" of "+v.Subnet.String()+" on "+v.Network)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func (n *node) check(when, want string) {
	n.t.Helper()
	if got := n.holds(); got != want {
		n.t.Errorf("%s: got\n%s\nwant\n%s", when, got, want)
	}
}

func (n *node) ensure(subnet string) {
	n.t.Helper()
	if _, err := n.Ensure(n.t.Context(), pfx(subnet)); err != nil {
		n.t.Fatal(err)
	}
}

// pod adds a pod in host-local's directory, in HNS, or in both.
func (n *node) pod(network, name, addr string, inStore, inHNS bool) {
	n.t.Helper()
	if inStore {
		path := filepath.Join(n.DataDir, network, addr)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(name+"\r\neth0"), 0o600)); err != nil {
			n.t.Fatal(err)
		}
	}
	if !inHNS {
		return
	}
	all, err := n.Client.Networks(n.t.Context())
	if err != nil {
		n.t.Fatal(err)
	}
	if _, err := n.Client.CreateEndpoint(n.t.Context(), hns.Endpoint{Name: name, Network: all[0].ID, IPs: []netip.Prefix{pfx(addr + "/24")}}); err != nil {
		n.t.Fatal(err)
	}
}

const usual = "endpoint source-vip 10.244.1.2/24\nflannel.4096/10.244.1.2 kube-proxy source-vip\npublished 10.244.1.2 of 10.244.1.0/24 on flannel.4096"

func TestEnsure(t *testing.T) {
	n := newNode(t)
	if _, err := n.Ensure(t.Context(), pfx("10.244.7.0/24")); err == nil || !strings.Contains(err.Error(), "10.244.7.0/24") {
		t.Errorf("without its network: %v", err)
	}
	n.check("before Ensure", "")
	n.ensure("10.244.1.0/24")
	n.check("after Ensure", usual)
	e, err := hns.DecodeEndpoint(n.m.Admin().Endpoints()[0])
	if host := n.m.Admin().Adapter("vEthernet (Ethernet)"); err != nil || e.MAC != host.MAC {
		t.Errorf("the endpoint's MAC is %s, the host's %s, %v", e.MAC, host.MAC, err)
	}
	n.m.ForgetLog()
	n.pod("flannel.4096", "pod", "10.244.1.3", true, true)
	n.m.ForgetLog()
	n.ensure("10.244.1.0/24")
	if changes := n.m.Changes(); len(changes) > 0 {
		t.Errorf("a second Ensure changed %v", changes)
	}
	// Ensure restores what another program deleted.
	if err := errors.Join(n.m.Admin().DeleteEndpoint("source-vip"), os.Remove(filepath.Join(n.DataDir, "flannel.4096", "10.244.1.2")), os.Remove(n.File)); err != nil {
		t.Fatal(err)
	}
	n.ensure("10.244.1.0/24")
	n.check("after a deletion", `endpoint pod 10.244.1.3/24
endpoint source-vip 10.244.1.2/24
flannel.4096/10.244.1.2 kube-proxy source-vip
flannel.4096/10.244.1.3 pod eth0
published 10.244.1.2 of 10.244.1.0/24 on flannel.4096`)
}

// A node that joins the cluster again has another subnet, on a network with the same
// name or with another one.
func TestRejoin(t *testing.T) {
	for _, name := range []string{"flannel.4096", "other"} {
		n := newNode(t)
		n.ensure("10.244.1.0/24")
		if err := n.m.Admin().DeleteNetwork("flannel.4096"); err != nil {
			t.Fatal(err)
		}
		n.make(name, hns.Overlay, "10.244.9.0/24")
		n.pod(name, "pod", "10.244.9.2", true, false)
		n.ensure("10.244.9.0/24")
		n.check("after it joined again", "endpoint source-vip 10.244.9.3/24\n"+name+"/10.244.9.2 pod eth0\n"+name+"/10.244.9.3 kube-proxy source-vip\npublished 10.244.9.3 of 10.244.9.0/24 on "+name)
	}
}

// A directory of host-local that has two names is not a former one and a new one: the reservations stay, and Release names
// each of them once. The full path is published, whatever the directory of the process is.
func TestStoreOfTwoNames(t *testing.T) {
	for _, kind := range []string{hns.Overlay, hns.L2Bridge} {
		n := newNode(t)
		if err := n.m.Admin().DeleteNetwork("flannel.4096"); err != nil {
			t.Fatal(err)
		}
		n.make("pods", kind, "10.244.1.0/24")
		n.ensureIn(n.DataDir)
		want := n.holds()
		would, err := n.Release(t.Context(), true)
		if err != nil {
			t.Fatal(err)
		}
		alias := strings.ToUpper(n.DataDir)
		if runtime.GOOS != "windows" {
			alias = filepath.Join(t.TempDir(), "link")
			if err := os.Symlink(n.DataDir, alias); err != nil {
				t.Fatal(err)
			}
		}
		t.Chdir(filepath.Dir(n.DataDir))
		for _, name := range []string{alias, filepath.Base(n.DataDir), n.DataDir} {
			n.ensureIn(name)
			n.check("with "+name, want)
			if v, err := ReadVIP(n.File); err != nil || !filepath.IsAbs(v.Store) {
				t.Errorf("with %s: published %+v, %v", name, v, err)
			}
			if got, err := n.Release(t.Context(), true); err != nil || !slices.Equal(got, would) {
				t.Errorf("with %s: would release %q, %v, not %q", name, got, err, would)
			}
		}
		if err := os.RemoveAll(n.DataDir); err != nil {
			t.Fatal(err)
		}
		n.ensureIn(t.TempDir()) // nothing is to be released in a directory that is gone
	}
}

// ensureIn is Ensure for 10.244.1.0/24, with a directory of host-local. An L2Bridge needs no source VIP.
func (n *node) ensureIn(dataDir string) {
	n.t.Helper()
	k := n.VIPKeeper
	k.DataDir = dataDir
	if _, err := k.Ensure(n.t.Context(), pfx("10.244.1.0/24")); err != nil && !errors.Is(err, errVIPNotNeeded) {
		n.t.Fatal(err)
	}
}

// An address that a pod has in host-local or in HNS is not chosen. The endpoint that
// kube-proxy created itself, without a name, is used.
func TestTaken(t *testing.T) {
	for _, c := range []struct {
		name           string
		inStore, inHNS bool
		want           string
	}{
		{"pod", true, true, "10.244.1.3"}, {"pod", true, false, "10.244.1.3"}, {"pod", false, true, "10.244.1.3"}, {"", false, true, "10.244.1.2"},
	} {
		n := newNode(t)
		n.pod("flannel.4096", c.name, "10.244.1.2", c.inStore, c.inHNS)
		if v, err := n.Ensure(t.Context(), pfx("10.244.1.0/24")); err != nil || v.Addr != ip(c.want) {
			t.Errorf("%+v: %v, %v", c, v.Addr, err)
		}
		n.ensure("10.244.1.0/24")
		if all := n.m.Admin().Endpoints(); c.name == "" && len(all) != 1 {
			t.Errorf("endpoints: %s", all)
		}
	}
}

// Without a free address, Ensure fails and reserves nothing.
func TestFull(t *testing.T) {
	n := newNode(t)
	n.make("small", hns.Overlay, "10.244.8.0/29")
	for _, a := range []string{"10.244.8.2", "10.244.8.3", "10.244.8.4", "10.244.8.5", "10.244.8.6"} {
		n.pod("small", "pod", a, true, false)
	}
	if _, err := n.Ensure(t.Context(), pfx("10.244.8.0/29")); err == nil || !strings.Contains(err.Error(), "10.244.8.0/29") {
		t.Error(err)
	}
	if got := n.holds(); strings.Contains(got, "kube-proxy") || strings.Contains(got, "published") {
		t.Error(got)
	}
}

// If HNS fails, the next Ensure continues from there; Release deletes what exists.
func TestFailure(t *testing.T) {
	n := newNode(t)
	n.m.Fail(hnstest.Fault{Func: "HcnCreateEndpoint", Times: 1, Code: hns.ManagerStopped})
	if _, err := n.Ensure(t.Context(), pfx("10.244.1.0/24")); !errors.Is(err, hns.ErrUnavailable) {
		t.Errorf("with an HNS that fails: %v", err)
	}
	n.check("after the failure", "flannel.4096/10.244.1.2 kube-proxy source-vip")
	if remains, err := n.Release(t.Context(), true); err != nil || len(remains) != 1 {
		t.Errorf("remains %q, %v", remains, err)
	}
	n.ensure("10.244.1.0/24")
	n.check("after the next Ensure", usual)
	if remains, err := n.Release(t.Context(), true); err != nil || len(remains) != 3 {
		t.Errorf("remains %q, %v", remains, err)
	}
	n.check("after a dry run", usual)
	removed, err := n.Release(t.Context(), false)
	if err != nil || len(removed) != 3 {
		t.Errorf("released %q, %v", removed, err)
	}
	n.check("after Release", "")
	if removed, err := n.Release(t.Context(), false); err != nil || len(removed) != 0 {
		t.Errorf("a second Release: %q, %v", removed, err)
	}
	// A damaged file is published again.
	n.ensure("10.244.1.0/24")
	if err := os.WriteFile(n.File, []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	n.ensure("10.244.1.0/24")
	n.check("with a damaged file", usual)
}

// On an L2Bridge, Ensure releases the source VIP of an earlier overlay and reserves the address of the host's endpoint, and
// the other way round.
func TestBridge(t *testing.T) {
	n := newNode(t)
	n.ensure("10.244.1.0/24")
	if err := n.m.Admin().DeleteNetwork("flannel.4096"); err != nil {
		t.Fatal(err)
	}
	n.make("cbr0", hns.L2Bridge, "10.244.1.0/24")
	want := VIP{Network: "cbr0", Subnet: pfx("10.244.1.0/24"), Store: filepath.Join(n.DataDir, "cbr0")}
	for range 2 {
		if v, err := n.Ensure(t.Context(), pfx("10.244.1.0/24")); !errors.Is(err, errVIPNotNeeded) || v != want {
			t.Error(v, err)
		}
		n.check("on a bridge", "cbr0/10.244.1.2 flanneld host-endpoint")
	}
	if v, err := ReadVIP(n.File); err != nil || v != want {
		t.Errorf("published %+v, %v", v, err)
	}
	n.pod("cbr0", "pod", "10.244.1.2", true, false)
	if err := os.Remove(n.File); err != nil {
		t.Fatal(err)
	}
	if v, err := n.Ensure(t.Context(), pfx("10.244.1.0/24")); !errors.Is(err, errHostAddress) || errors.Is(err, errVIPNotNeeded) || v != want || !strings.Contains(err.Error(), "10.244.1.2") {
		t.Errorf("a pod has the host's address: %v, %v", v, err)
	}
	n.check("with the pod", "cbr0/10.244.1.2 pod eth0")
	if v, err := ReadVIP(n.File); err != nil || v != want { // so that the daemon tries again
		t.Errorf("published %+v, %v", v, err)
	}
	env := filepath.Join(filepath.Dir(n.File), "subnet.env")
	if _, err := subnet.WriteEnv(env, subnet.Env{V4Network: pfx("10.244.0.0/16"), V4Subnet: pfx("10.244.1.0/24"), MTU: 1500}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // for kube-proxy, which starts nevertheless
	defer cancel()
	if v, text, err := ReserveVIP(ctx, n.VIPKeeper, env, KubeProxy{}); err != nil || v.Needed || !slices.Contains(v.Flags, "--network-name=cbr0") || !errors.Is(v.Warning, errHostAddress) {
		t.Errorf("kube-proxy has %+v, %s, %v", v, text, err)
	}
	if err := errors.Join(os.Remove(filepath.Join(n.DataDir, "cbr0", "10.244.1.2")), n.m.Admin().DeleteNetwork("cbr0")); err != nil {
		t.Fatal(err)
	}
	n.make("cbr0", hns.Overlay, "10.244.1.0/24")
	n.ensure("10.244.1.0/24")
	n.check("on an overlay of the same name", "cbr0/10.244.1.2 kube-proxy source-vip\nendpoint source-vip 10.244.1.2/24\npublished 10.244.1.2 of 10.244.1.0/24 on cbr0")
	if removed, err := n.Release(t.Context(), false); err != nil || len(removed) != 3 {
		t.Errorf("released %q, %v", removed, err)
	}
	n.check("after Release", "")
}

// HNS refuses an address that none of its endpoints has: the next one is taken.
func TestAddressInUse(t *testing.T) {
	n := newNode(t)
	for _, a := range []string{"10.244.1.2\"", "10.244.1.3\""} {
		n.m.Fail(hnstest.Fault{Func: "HcnCreateEndpoint", Match: a, Code: hns.AddressInUse})
	}
	for range 2 {
		n.ensure("10.244.1.0/24")
		n.check("with two addresses in use", "endpoint source-vip 10.244.1.4/24\nflannel.4096/10.244.1.4 kube-proxy source-vip\npublished 10.244.1.4 of 10.244.1.0/24 on flannel.4096")
	}
}

// HNS refuses every address: none stays reserved, since pods need them.
func TestAllInUse(t *testing.T) {
	n := newNode(t)
	n.m.Fail(hnstest.Fault{Func: "HcnCreateEndpoint", Code: hns.AddressInUse})
	if _, err := n.Ensure(t.Context(), pfx("10.244.1.0/24")); !errors.Is(err, hns.ErrAddressInUse) {
		t.Errorf("got %v", err)
	}
	n.check("with no address", "")
}

// HNS does not delete the endpoint of a former source VIP, or does not answer: the next one is published, and the former
// one is deleted, and its address released, when HNS does.
func TestFormerEndpointStays(t *testing.T) {
	for _, code := range []hns.Code{hns.InvalidParameter, hns.ManagerStopped} {
		n := newNode(t)
		n.ensure("10.244.1.0/24")
		n.m.Fail(hnstest.Fault{Func: "HcnDeleteEndpoint", Code: code})
		n.pod("flannel.4096", "pod", "10.244.1.2", true, false) // in the place of our reservation
		// A reservation of ours that is not wanted stays as long.
		if err := os.WriteFile(filepath.Join(n.DataDir, "flannel.4096", "10.244.8.2"), []byte("kube-proxy\r\nsource-vip"), 0o600); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if v, err := n.Ensure(t.Context(), pfx("10.244.1.0/24")); !errors.Is(err, errFormerEndpoint) || v.Addr != ip("10.244.1.3") {
				t.Errorf("%v, %v", v, err)
			}
			n.check("with the former endpoint", `endpoint source-vip 10.244.1.2/24
endpoint source-vip 10.244.1.3/24
flannel.4096/10.244.1.2 pod eth0
flannel.4096/10.244.1.3 kube-proxy source-vip
flannel.4096/10.244.8.2 kube-proxy source-vip
published 10.244.1.3 of 10.244.1.0/24 on flannel.4096`)
		}
		n.m.Heal()
		n.ensure("10.244.1.0/24")
		n.check("when HNS deletes it", `endpoint source-vip 10.244.1.3/24
flannel.4096/10.244.1.2 pod eth0
flannel.4096/10.244.1.3 kube-proxy source-vip
published 10.244.1.3 of 10.244.1.0/24 on flannel.4096`)
	}
}
