package probe

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"flannel/internal/test/hnstest"
	"flannel/pkg/windows/hns"
	"flannel/pkg/windows/hostconfig"
)

func TestWindowsNode(t *testing.T) {
	for _, c := range []struct {
		code, want string
		change     func(*simulatedNode)
	}{
		{"FL505", "ok: VNI 4096 4789", func(*simulatedNode) {}},
		{"FL513", "ok: containerd kube-proxy kubelet", func(n *simulatedNode) {
			n.procs = append(n.procs, process{pid: 20, name: "kubelet.exe"}, process{pid: 21, name: "containerd.exe"}, process{pid: 22, name: "containerd-shim-runhcs-v1.exe"})
		}},
		{"FL513", "warn: kubelet containerd", func(n *simulatedNode) { n.procs = []process{{pid: 20, name: "Kube-Proxy-amd64.exe"}} }},
		{"FL514", "warn: SourceVipRequest.json", func(n *simulatedNode) { n.hand(os.WriteFile(n.o.LeftFiles[1], nil, 0o600)) }},
		{"FL514", "warn: HNS vxlan0 10.244.7.0/24", func(n *simulatedNode) {
			n.hand(n.m.Admin().CreateNetwork(`{"Name":"vxlan0","Type":"Overlay","Ipams":[{"Type":"Static","Subnets":[{"IpAddressPrefix":"10.244.7.0/24","Policies":[{"Type":"VSID","Settings":{"IsolationId":5000}}]}]}],"SchemaVersion":{"Major":2,"Minor":0}}`))
		}},
		{"FL517", "ok: vEthernet Ethernet", func(n *simulatedNode) { n.journal(hnstest.HostAddr, hnstest.Gateway) }},
		{"FL517", "fail: 10.99.0.9/24", func(n *simulatedNode) { n.journal(netip.MustParsePrefix("10.99.0.9/24"), hnstest.Gateway) }},
		{"FL517", "fail: DNS [10.99.0.53]", func(n *simulatedNode) { n.journal(hnstest.HostAddr, netip.MustParseAddr("10.99.0.53")) }},
		{"FL517", "fail: 169.254.169.254/32 10.99.0.1", func(n *simulatedNode) {
			n.journal(hnstest.HostAddr, hnstest.Gateway, `{"Dst":"169.254.169.254/32","NextHop":"10.99.0.1","Metric":5}`)
		}},
		{"FL517", "unknown: hns.json", func(n *simulatedNode) { n.hand(os.WriteFile(n.o.JournalFile, []byte("{"), 0o600)) }},
	} {
		n := newNode(t, overlay())
		c.change(n)
		verdicts(t, c.want, n.read(), map[string]string{c.code: c.want})
	}
	n := newNode(t, hns.Network{Name: "flannel.4096", Type: hns.Overlay, VxlanPort: 4790, Subnets: overlay().Subnets})
	verdicts(t, "another port", n.read(), map[string]string{"FL505": "ok: VNI 4096 4790"})
	n.m.Turn(func(k *hnstest.Knobs) { k.Version = hns.Version{Major: 10, Minor: 2} })
	n.client = hns.NewClient(n.m, hns.Timing{})
	verdicts(t, "an old HNS", n.read(), map[string]string{"FL505": "fail: 4790"})
}

// journal writes a journal with settings of the adapter that were saved an hour
// ago.
func (n *simulatedNode) journal(address netip.Prefix, dns netip.Addr, routes ...string) {
	n.t.Helper()
	addresses := fmt.Sprintf(`{"Prefix":"%s","Manual":true}`, address)
	if address != hnstest.HostAddr {
		addresses += fmt.Sprintf(`,{"Prefix":"%s","Manual":true}`, hnstest.HostAddr)
	}
	text := fmt.Sprintf(`{"Before":{"Written":%q,"Adapter":"Ethernet","Addresses":[%s],"Routes":[%s],"DNS":["%s"]}}`,
		time.Now().Add(-time.Hour).UTC().Format(time.RFC3339), addresses, strings.Join(routes, ","), dns)
	n.hand(os.WriteFile(n.o.JournalFile, []byte(text), 0o600))
}

// The category of the host's network is compared with the saved one; without one, or without a journal, FL524 is ok.
func TestReadCategory(t *testing.T) {
	n := newNode(t, overlay())
	verdicts(t, "none saved", n.read(), map[string]string{"FL524": "ok"})
	saved := hostconfig.SavedCategory{Category: hns.Private, Adapter: "Ethernet", GUID: n.m.Admin().Adapter("Ethernet").GUID}
	for _, c := range []struct {
		current hns.Category
		problem string
		want    string
	}{
		{hns.Private, "", "ok: Private vEthernet~(Ethernet)"},
		{hns.Public, "", "warn: Private vEthernet~(Ethernet)"},
		{hns.Public, "a group policy", "warn: Private vEthernet~(Ethernet) policy"},
	} {
		saved.Done, saved.Problem = c.problem != "", c.problem
		if err := hostconfig.WriteJournal(n.o.JournalFile, hostconfig.Journal{Category: &saved}); err != nil {
			t.Fatal(err)
		}
		if err := n.m.Admin().SetCategory("vEthernet (Ethernet)", c.current); err != nil {
			t.Fatal(err)
		}
		verdicts(t, c.current.String(), n.read(), map[string]string{"FL524": c.want})
	}
	n.m.Fail(hnstest.Fault{Func: "INetwork.GetCategory", Code: hns.RPCServerUnavailable})
	verdicts(t, "the service does not answer", n.read(), map[string]string{"FL524": "unknown"})
}
