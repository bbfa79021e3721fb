package probe

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"flannel/internal/test/eventually"
	"flannel/internal/test/hnstest"
	"flannel/pkg/doctor"
	"flannel/pkg/status"
	"flannel/pkg/windows/hns"
)

// What the adapter is decides FL523, before and after a switch is bound to it.
func TestAdapterKinds(t *testing.T) {
	for want, knobs := range map[string]hnstest.Knobs{"ok: Ethernet": {}, "fail: Ethernet 42": {VlanLost: 42}, "warn: Ethernet team": {AdapterKind: hns.Team},
		"warn: Ethernet Wi-Fi": {AdapterKind: hns.WiFi}, "fail: Ethernet VPN": {AdapterKind: hns.Tunnel}} {
		n := newNode(t, overlay())
		if err := n.m.Admin().DeleteNetwork(overlay().Name); err != nil {
			t.Fatal(err)
		}
		n.m.ForgetLog()
		n.report = status.Report{}
		n.m.Turn(func(k *hnstest.Knobs) { *k = knobs })
		verdicts(t, want, n.read(), map[string]string{"FL523": want})
	}
	n := newNode(t, overlay())
	n.m.Turn(func(k *hnstest.Knobs) { k.VlanLost = 42 })
	verdicts(t, "bound", n.read(), map[string]string{"FL523": "warn: Ethernet 42"})
}

// A pod without endpoint is named after two looks, and not one that is removed meanwhile.
func TestLostPods(t *testing.T) {
	n := newNode(t, overlay())
	n.o.PodResults = t.TempDir()
	namespace := n.m.Admin().AddNamespace()
	write := func(name string) (file string) {
		t.Helper()
		file = filepath.Join(n.o.PodResults, name)
		text := `{"kind":"cniCacheV1","containerId":"` + name + `","networkName":"flannel.4096","netns":"` + namespace +
			`","cniArgs":[["K8S_POD_NAMESPACE","default"],["K8S_POD_NAME","` + name + `"]]}`
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	write("lost")
	removed := write("removed")
	// The first look, which has read the results, does not end before one of them is removed.
	n.client, n.o.Timeout = hns.NewClient(n.m, hns.Timing{Query: 10 * time.Minute}), 10*time.Minute
	n.m.Fail(hnstest.Fault{Func: "HcnOpenNamespace", Hang: true})
	read := make(chan doctor.Snapshot, 1)
	go func() { read <- n.read() }()
	eventually.True(t, "the namespaces are listed, after the results", func() bool {
		return slices.ContainsFunc(n.m.Log(), func(c hnstest.Call) bool { return c.Func == "HcnEnumerateNamespaces" })
	})
	if err := os.Remove(removed); err != nil {
		t.Fatal(err)
	}
	n.m.Heal()
	s := <-read
	verdicts(t, "a pod without endpoint", s, map[string]string{"FL522": "fail: 1 default/lost"})
	if slices.Contains(s.Windows.LostPods.Value, "default/removed") {
		t.Errorf("%q", s.Windows.LostPods.Value)
	}
}

func TestHealthyOverlay(t *testing.T) {
	n := newNode(t, overlay())
	n.reserve("10.244.1.2", "kube-proxy\r\nsource-vip")
	s := n.read()
	verdicts(t, "an overlay", s, map[string]string{"FL102": "ok: flanneld.exe 7", "FL501": "ok: HNS 13.3", "FL502": "ok: flannel.4096 Overlay 10.244.1.0/24 Ethernet",
		"FL503": "ok: 10.99.0.2 Ethernet", "FL504": "ok", "FL505": "ok: VNI 4096", "FL506": "ok: 1~policies", "FL507": "skipped: host-gw", "FL508": "ok: win1",
		"FL509": "ok: 10.244.1.2", "FL510": "ok", "FL511": "skipped", "FL512": "skipped", "FL513": "warn: kubelet containerd", "FL514": "ok", "FL517": "ok",
		"FL518": "skipped: KUBE_NETWORK", "FL519": "skipped: host-gw", "FL520": "warn: Public 4789", "FL521": "ok", "FL523": "ok: Ethernet"})
	if args := s.Processes.Value[0].Args; strings.Join(append(slices.Clone(args), s.Windows.KubeProxy.Value...), " ") !=
		"--etcd-password=[redacted] service run kube-proxy --hostname-override=win1 --source-vip=10.244.1.2 --token [redacted] --enable-dsr=true" {
		t.Errorf("%q, %q", args, s.Windows.KubeProxy.Value)
	}
	want := []doctor.Adapter{{Name: "vEthernet (Ethernet)", Virtual: true, Addrs: []netip.Addr{hnstest.HostAddr.Addr()}, DNS: []netip.Addr{hnstest.Gateway}}, {Name: "Ethernet"}}
	for i := range s.Windows.Adapters.Value {
		s.Windows.Adapters.Value[i].Index = 0
	}
	byName := func(a, b doctor.Adapter) int { return strings.Compare(b.Name, a.Name) }
	slices.SortFunc(s.Windows.Adapters.Value, byName)
	if d := cmp.Diff(want, s.Windows.Adapters.Value, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
		t.Error(d)
	}
}

// TestOverlayProblems causes each problem on the machine.
func TestOverlayProblems(t *testing.T) {
	for _, c := range []struct {
		code, want string
		change     func(*simulatedNode)
	}{
		{"FL102", "fail: flanneld.exe 7 flanneld-old.exe 70", func(n *simulatedNode) { n.procs = append(n.procs, process{pid: 70, name: "flanneld-old.exe"}) }},
		{"FL102", "unknown: flanneld-old.exe 70 denied", func(n *simulatedNode) { // it may run a command
			n.procs = append(n.procs, process{pid: 70, name: "flanneld-old.exe", argsErr: errors.New("denied")})
		}},
		{"FL501", "fail: 0x800706ba", func(n *simulatedNode) { n.m.Turn(func(k *hnstest.Knobs) { k.Down = true }) }},
		{"FL502", "unknown: 0x800706ba", func(n *simulatedNode) { n.m.Turn(func(k *hnstest.Knobs) { k.Down = true }) }},
		{"FL501", "warn: HNS 9.1", func(n *simulatedNode) {
			n.m.Turn(func(k *hnstest.Knobs) { k.Version = hns.Version{Major: 9, Minor: 1} })
		}},
		{"FL502", "fail: HNS 0", func(n *simulatedNode) { n.hand(n.m.Admin().DeleteNetwork("flannel.4096")) }},
		{"FL502", "fail: 10.244.1.0/24 10.244.9.0/24", func(n *simulatedNode) { n.report.Node.Networks[0].Subnet = pfx("10.244.9.0/24") }},
		{"FL503", "fail: 169.254.3.4 Windows", func(n *simulatedNode) { n.hand(n.m.Admin().Readdress("vEthernet (Ethernet)", pfx("169.254.3.4/16"))) }},
		{"FL504", "warn: IPv4", func(n *simulatedNode) { n.m.Admin().DeleteRoutes(pfx("0.0.0.0/0")) }},
		{"FL504", "warn: DNS", func(n *simulatedNode) {
			n.m.Plug(hns.Adapter{Name: "second", MTU: 1500, Up: true})
			n.report.Node.Underlay.Index = n.m.Admin().Adapter("second").Index
		}},
		{"FL504", "warn: 2 IPv4", func(n *simulatedNode) {
			n.hand(n.m.Admin().AddRoute(hns.Route{Dst: pfx("0.0.0.0/0"), NextHop: netip.MustParseAddr("10.99.0.7"), Index: n.report.Node.Underlay.Index, Metric: 3}))
		}},
		{"FL506", "fail: 1~policies", func(n *simulatedNode) { n.hand(n.m.Admin().DeleteRemoteSubnet("flannel.4096", peer.Prefix)) }},
		{"FL506", "fail: 0~policies", func(n *simulatedNode) {
			n.hand(n.m.Admin().Policies("flannel.4096", func(all []hns.Policy) []hns.Policy {
				return append(all, hns.Policy{Type: "RemoteSubnetRoute", Settings: json.RawMessage(`{"DestinationPrefix":"no"}`)})
			}))
		}},
		{"FL506", "ok: 1~policies", func(n *simulatedNode) { // as before HNS 9.2
			n.hand(n.m.Admin().DeleteRemoteSubnet("flannel.4096", peer.Prefix))
			network, err := n.client.Network(n.t.Context(), "flannel.4096")
			n.hand(err)
			_, err = n.client.CreateEndpoint(n.t.Context(), hns.Endpoint{Name: "flannel.4096_peer_10.244.3.0-24", Network: network.ID, Remote: true, Provider: peer.Provider,
				IPs: []netip.Prefix{peer.Prefix}, MAC: peer.MAC})
			n.hand(err)
			n.m.Turn(func(k *hnstest.Knobs) { k.Version = hns.Version{Major: 9, Minor: 1} })
			n.client = hns.NewClient(n.m, hns.Timing{})
			n.m.ForgetLog()
		}},
		{"FL508", "fail", func(n *simulatedNode) { n.procs[3].args = []string{"kube-proxy"} }},
		{"FL508", "skipped: kube-proxy", func(n *simulatedNode) { n.procs = n.procs[:3] }},
		{"FL508", "unknown: Kube-Proxy.exe", func(n *simulatedNode) { n.procs[3].argsErr = errors.New("denied") }},
		{"FL509", "ok: 10.244.1.2", func(*simulatedNode) {}}, // without host-local's directory, it is not known what is reserved
		{"FL509", "fail", func(n *simulatedNode) { n.reserve("10.244.1.7", "a pod") }},
		{"FL509", "ok: 10.244.1.2 reserved not~known", func(n *simulatedNode) { // it may be reserved in another directory
			n.reserve("10.244.1.7", "a pod")
			n.hand(os.WriteFile(n.o.VIPFile, []byte("{"), 0o600))
		}},
		{"FL509", "fail: 10.244.1.9", func(n *simulatedNode) {
			n.hand(os.WriteFile(n.o.VIPFile, []byte(`{"sourceVIP":"10.244.1.9","store":"/x/y"}`), 0o644))
		}},
		{"FL510", "fail: HNS 10.0", func(n *simulatedNode) { n.m.Turn(func(k *hnstest.Knobs) { k.Version = hns.Version{Major: 10} }) }},
	} {
		n := newNode(t, overlay())
		c.change(n)
		verdicts(t, c.want, n.read(), map[string]string{c.code: c.want})
	}
}

func TestBridge(t *testing.T) {
	n := newNode(t, bridge())
	verdicts(t, "a bridge", n.read(), map[string]string{"FL502": "ok: cbr0 L2Bridge", "FL503": "ok: 10.99.0.2", "FL504": "ok", "FL505": "skipped", "FL506": "skipped",
		"FL507": "ok", "FL509": "skipped", "FL519": "fail: 1~routes"})
	addRoute := func(via string) {
		t.Helper()
		n.hand(n.m.Admin().AddRoute(hns.Route{Dst: peer.Prefix, NextHop: netip.MustParseAddr(via), Index: n.report.Node.Underlay.Index, Ours: true}))
	}
	addRoute(peer.Provider.String())
	verdicts(t, "a peer", n.read(), map[string]string{"FL519": "ok: 1~routes", "FL504": "ok"})
	addRoute("10.99.0.44") // of the node that had the subnet before
	verdicts(t, "a former next hop", n.read(), map[string]string{"FL519": "fail: 0~routes"})
	for _, name := range []string{"vEthernet (Ethernet)", "vEthernet (cbr0_ep)"} {
		n := newNode(t, bridge())
		n.hand(n.m.Admin().SetForwarding(name, false, false))
		verdicts(t, name, n.read(), map[string]string{"FL507": "fail"})
	}
	n = newNode(t, bridge())
	n.hand(n.m.Admin().DeleteEndpoint("cbr0_ep"))
	verdicts(t, "no endpoint", n.read(), map[string]string{"FL507": "fail: cbr0"})
}

// TestHNSHangs checks that a probe that hangs affects only its own facts.
func TestHNSHangs(t *testing.T) {
	t.Parallel() // it waits for timeouts
	n := newNode(t, overlay())
	n.m.Fail(hnstest.Fault{Hang: true})
	n.client = hns.NewClient(n.m, hns.Timing{Query: 1500 * time.Millisecond})
	s := run(t.Context(), n.o, machine{n.client, n.m, n.firewall(), func() ([]process, error) { return n.procs, nil }}.probes)
	s.OS, s.Daemon = "windows", doctor.Known(doctor.Answer{Report: &n.report})
	verdicts(t, "HNS hangs", s, map[string]string{"FL501": "fail", "FL502": "unknown", "FL506": "unknown", "FL510": "unknown",
		"FL504": "ok", "FL508": "ok"})
	n.m.Heal()
}

// A bundle is enough to repeat the machine in a simulation: HNS and the IP stack answer byte for byte the same. After a
// change, the network still has the form that HNS gave it.
func TestRecorded(t *testing.T) {
	for name, network := range map[string]hns.Network{"overlay": overlay(), "bridge": bridge()} {
		n := newNode(t, network)
		n.m.Turn(func(k *hnstest.Knobs) {
			k.Version = hns.Version{Major: 9, Minor: 5}
			k.OtherCase, k.HostBits, k.OmitVSID, k.OmitGateway = network.Type == hns.Overlay, true, true, true
		})
		record := machine{n.client, n.m, nil, nil}.documents(t.Context())
		files := fstest.MapFS{}
		for name, text := range record {
			files[name] = &fstest.MapFile{Data: text}
		}
		m, err := hnstest.Recorded(files)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close() //nolint:errcheck // it is in memory
		client := hns.NewClient(m, hns.Timing{})
		again := func() map[string][]byte { return machine{client, m, nil, nil}.documents(t.Context()) }
		if diff := cmp.Diff(record, again()); diff != "" {
			t.Errorf("%s (+): %s", name, diff)
		}
		if network.Type != hns.Overlay {
			have, err := client.Network(t.Context(), network.Name)
			if want, _ := n.client.Network(t.Context(), network.Name); err != nil || have.ManagementIP != want.ManagementIP {
				t.Errorf("%s has the address %v (%v), want %v", name, have.ManagementIP, err, want.ManagementIP)
			}
			continue
		}
		var id struct{ ID string }
		if err := json.Unmarshal(m.Admin().Networks()[0], &id); err != nil {
			t.Fatal(err)
		}
		for _, c := range []*hns.Client{n.client, client} {
			if err := c.RemovePolicies(t.Context(), id.ID, []hns.Policy{peer.Policy()}); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(machine{n.client, n.m, nil, nil}.documents(t.Context()), again()); diff != "" {
			t.Errorf("%s after a change (+): %s", name, diff)
		}
	}
}

func TestDocuments(t *testing.T) {
	n := newNode(t, bridge())
	read := func(name string, into any) {
		t.Helper()
		all := machine{n.client, n.m, nil, nil}.documents(t.Context())
		if err := json.Unmarshal(all[name], into); err != nil || len(all) != 6 {
			t.Fatalf("%s: %v\n%s", name, err, all[name])
		}
	}
	var networks, endpoints []struct{ Name, Type string }
	var namespaces []struct{ ID string }
	namespace := n.m.Admin().AddNamespace()
	var adapters []hns.Adapter
	var routes []hns.Route
	var version hns.Version
	if read("hns-version.json", &version); version.Major != 13 {
		t.Errorf("HNS %+v", version)
	}
	read("hns-networks.json", &networks)
	read("hns-endpoints.json", &endpoints)
	if read("hns-namespaces.json", &namespaces); len(namespaces) != 1 || namespaces[0].ID != namespace {
		t.Errorf("%+v, want %s", namespaces, namespace)
	}
	read("adapters.json", &adapters)
	read("ip-routes.json", &routes)
	if len(networks) != 1 || networks[0].Name != "cbr0" || len(endpoints) != 1 || endpoints[0].Name != "cbr0_ep" {
		t.Errorf("%+v, %+v", networks, endpoints)
	}
	want, _ := n.m.Adapters()
	wantRoutes, _ := n.m.Routes()
	if d := cmp.Diff(want, adapters, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
		t.Error(d)
	}
	if !slices.Equal(wantRoutes, routes) {
		t.Errorf("%+v, want %+v", routes, wantRoutes)
	}
	if len(n.m.Changes()) > 0 {
		t.Errorf("changed %v", n.m.Changes())
	}
	n.m.Turn(func(k *hnstest.Knobs) { k.Down = true })
	if text := string(machine{n.client, n.m, nil, nil}.documents(context.Background())["hns-networks.json"]); !strings.Contains(text, "0x800706ba") {
		t.Errorf("HNS is down: %s", text)
	}
}
