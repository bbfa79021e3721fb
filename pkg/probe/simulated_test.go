package probe

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"flannel/internal/test/hnstest"
	"flannel/internal/test/logtest"
	"flannel/pkg/dataplane"
	"flannel/pkg/doctor"
	"flannel/pkg/status"
	"flannel/pkg/underlay"
	"flannel/pkg/windows"
	"flannel/pkg/windows/hns"
	"flannel/subnet"
)

func pfx(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// simulatedNode is a simulated Windows machine with a pod network and everything that a
// Snapshot contains.
type simulatedNode struct {
	t      *testing.T
	m      *hnstest.Machine
	client *hns.Client
	o      Options
	report status.Report
	procs  []process // running ones
}

func (n *simulatedNode) firewall() *hns.FirewallClient {
	return hns.NewFirewallClient(n.m, time.Minute)
}

// peer is a peer that is up to date by the daemon's report.
var peer = hns.RemoteSubnet{Prefix: pfx("10.244.3.0/24"), VSID: 4096, Provider: netip.MustParseAddr("10.99.0.3"), MAC: dataplane.MAC{2, 0, 0, 0, 1, 3}}

func newNode(t *testing.T, network hns.Network) *simulatedNode {
	t.Helper()
	n := &simulatedNode{t: t, m: hnstest.NewFor(t)}
	n.client = hns.NewClient(n.m, hns.Timing{})
	network.Adapter, network.NonPersistent = "Ethernet", true
	made, err := n.client.CreateNetwork(t.Context(), network)
	if err != nil {
		t.Fatal(err)
	}
	if network.Type == hns.Overlay {
		if err := n.client.AddPolicies(t.Context(), made.ID, []hns.Policy{hns.HostRoutePolicy(), peer.Policy()}); err != nil {
			t.Fatal(err)
		}
	} else {
		n.endpoint(made)
	}
	dir := t.TempDir()
	n.o = Options{Version: "test", SubnetFile: filepath.Join(dir, "subnet.env"), VIPFile: filepath.Join(dir, "source-vip.json"), DataDir: filepath.Join(dir, "networks"),
		JournalFile: filepath.Join(dir, "hns.json"), LeftFiles: []string{filepath.Join(dir, "SourceVip.json"), filepath.Join(dir, "SourceVipRequest.json")},
		ConfDir: filepath.Join(dir, "net.d"), BinDirs: []string{filepath.Join(dir, "bin")}, Commands: []string{"status", "service"}, Timeout: 30 * time.Second,
		Underlay: func() (underlay.Snapshot, error) { return windows.UnderlayOf(n.m, underlay.Options{}) }}
	if _, err := subnet.WriteEnv(n.o.SubnetFile, subnet.Env{V4Network: pfx("10.244.0.0/16"), V4Subnet: pfx("10.244.1.0/24"), MTU: 1450}); err != nil {
		t.Fatal(err)
	}
	n.procs = []process{{pid: 4, name: "System"}, {pid: 7, name: "flanneld.exe", args: []string{`C:\k\flanneld.exe`, "--etcd-password=hunter2", "service", "run"}},
		{pid: 8, name: "flanneld.exe", args: []string{"flanneld", "status"}},
		{pid: 9, name: "Kube-Proxy.exe", args: []string{"kube-proxy", "--hostname-override=win1", "--source-vip=10.244.1.2", "--token", "hunter3", "--enable-dsr=true"}}}
	host := n.m.Admin().Adapter("vEthernet (Ethernet)")
	n.report = status.Report{Ready: true, PeersKnown: true,
		Peers: []status.Peer{{Name: "a", State: status.UpToDate, Subnets: []netip.Prefix{peer.Prefix}, PublicIPs: []netip.Addr{peer.Provider}}},
		Node: &status.Node{Backend: "vxlan", MTU: 1450, Networks: []status.Network{{Network: pfx("10.244.0.0/16"), Subnet: pfx("10.244.1.0/24")}},
			Underlay: status.Underlay{Name: host.Name, Index: host.Index, MTU: 1500}, Devices: []status.Device{{Name: network.Name}}}}
	if network.Type != hns.Overlay {
		n.report.Node.Backend = "host-gw"
	}
	n.m.ForgetLog()
	n.client = hns.NewClient(n.m, hns.Timing{})
	return n
}

// endpoint creates the host's endpoint in a bridge network, as the daemon does.
func (n *simulatedNode) endpoint(on hns.Network) {
	n.t.Helper()
	e, err := n.client.CreateEndpoint(n.t.Context(), hns.Endpoint{Name: on.Name + "_ep", Network: on.ID, IPs: []netip.Prefix{pfx("10.244.1.2/24")}, Gateways: []netip.Addr{netip.MustParseAddr("10.244.1.1")}})
	if err == nil {
		err = n.client.AttachHost(n.t.Context(), e.ID)
	}
	for _, name := range []string{"vEthernet (Ethernet)", "vEthernet (cbr0_ep)"} {
		err = errors.Join(err, n.m.Admin().SetForwarding(name, false, true))
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

func overlay() hns.Network {
	return hns.Network{Name: "flannel.4096", Type: hns.Overlay, Subnets: []hns.Subnet{{Prefix: pfx("10.244.1.0/24"), Gateway: netip.MustParseAddr("10.244.1.1"), VSID: 4096}}}
}

func bridge() hns.Network {
	return hns.Network{Name: "cbr0", Type: hns.L2Bridge, Subnets: []hns.Subnet{{Prefix: pfx("10.244.1.0/24"), Gateway: netip.MustParseAddr("10.244.1.1")}}}
}

// read reads a Snapshot as on Windows, and checks that this changes nothing.
func (n *simulatedNode) read() doctor.Snapshot {
	n.t.Helper()
	before := len(n.m.Log())
	s := run(n.t.Context(), n.o, machine{n.client, n.m, n.firewall(), func() ([]process, error) { return n.procs, nil }}.probes)
	s.OS = "windows"
	s.Daemon = doctor.Known(doctor.Answer{Report: &n.report})
	if _, changes := n.client.Counts(); changes != 0 || len(n.m.Changes()) != 0 || n.m.OpenHandles() != 0 || len(n.m.Log()) == before {
		n.t.Errorf("reading made %d changes by the client, %v, and left %d handles open; %d calls", changes, n.m.Changes(), n.m.OpenHandles(), len(n.m.Log())-before)
	}
	return s
}

// names returns the words of a text. In them, "~" stands for a space.
func names(text string) []string {
	words := strings.Fields(text)
	for i := range words {
		words[i] = strings.ReplaceAll(words[i], "~", " ")
	}
	return words
}

// verdicts compares the findings of some checks: each is a verdict, followed by
// names that Finding.Seen must contain.
func verdicts(t *testing.T, when string, s doctor.Snapshot, want map[string]string) {
	t.Helper()
	for _, r := range doctor.Examine(s) {
		verdict, seen, _ := strings.Cut(want[r.Code], ": ")
		if want[r.Code] != "" && (string(r.Verdict) != verdict || !logtest.Names(r.Seen, names(seen)...)) {
			t.Errorf("%s: %s is %s, %q; want %s", when, r.Code, r.Verdict, r.Seen, want[r.Code])
		}
	}
}

// reserve writes the file for an address that host-local or flanneld source-vip
// writes.
func (n *simulatedNode) reserve(address, owner string) {
	n.t.Helper()
	dir := filepath.Join(n.o.DataDir, "flannel.4096")
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, address), []byte(owner), 0o600), os.WriteFile(filepath.Join(dir, "lock"), nil, 0o600)); err != nil {
		n.t.Fatal(err)
	}
}

func (n *simulatedNode) hand(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}
