package windows_test

import (
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	"flannel/cmd/flannel-lab/windows"
	"flannel/internal/test/hnstest"
	"flannel/pkg/windows/hns"
)

// document is a network as flanneld requests it.
func document(name, kind string, vsid uint32) json.RawMessage {
	subnet := hns.Subnet{Prefix: mustPrefix("10.244.5.0/24"), Gateway: netip.MustParseAddr("10.244.5.1"), VSID: vsid}
	d, _ := hns.EncodeNetwork(hns.Network{Name: name, Type: kind, Subnets: []hns.Subnet{subnet}, NonPersistent: true})
	return d
}

func remoteSubnet(prefix, provider, mac string) string {
	return `{"Type":"RemoteSubnetRoute","Settings":{"DestinationPrefix":"` + prefix + `","IsolationId":4096,"ProviderAddress":"` +
		provider + `","DistributedRouterMacAddress":"` + mac + `"}}`
}

func request(kind string, policies ...string) json.RawMessage {
	return json.RawMessage(`{"ResourceType":"Policy","RequestType":"` + kind + `","Settings":{"Policies":[` + strings.Join(policies, ",") + `]}}`)
}

// create creates a network and returns its ID.
func create(t *testing.T, m *hnstest.Machine, document json.RawMessage) string {
	t.Helper()
	made, err := m.CreateNetwork(document)
	if err != nil {
		t.Fatal(err)
	}
	n, err := hns.DecodeNetwork(made)
	if err != nil {
		t.Fatal(err)
	}
	return n.ID
}

func addresses(a hns.Adapter) string {
	var all []string
	for _, ip := range a.Addrs {
		all = append(all, ip.Prefix.String())
	}
	return strings.Join(all, " ")
}

func mustPrefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// listen serves a machine until the test ends, and returns its address.
func listen(t *testing.T, m *hnstest.Machine) string {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go windows.Serve(l, m)
	return l.Addr().String()
}

// A machine in another process executes orders and reports its state.
func TestRemote(t *testing.T) {
	m := hnstest.NewFor(t)
	r, err := windows.Dial(listen(t, m))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	id := create(t, m, document("flannel.4096", hns.Overlay, 4096))
	for _, peer := range []string{"10.244.7.0/24", "10.244.8.0/24"} {
		if err := m.ModifyNetwork(id, request("Add",
			remoteSubnet(peer, "10.99.0.3", "A2-0B-CC-DD-EE-01"))); err != nil {
			t.Fatal(err)
		}
	}
	report, err := r.Do(windows.Order{
		Turn:               json.RawMessage(`{"AcceptDuplicates":true}`),
		Fail:               []hnstest.Fault{{Func: "HcnOpenNetwork", Times: 1, Code: hns.RPCCallFailed}},
		DeleteRemoteSubnet: [2]string{"flannel.4096", "10.244.7.0/24"},
		Replace:            [][2]string{{"10.99.0.3", "10.99.0.4"}},
		Rename:             [2]string{"vEthernet (Ethernet)", "uplink"}, Readdress: []string{"uplink", "10.99.0.9/24"},
	})
	if err != nil {
		t.Fatal(err)
	}
	doc := string(report.Networks[0])
	if len(report.Changes()) != 3 || strings.Contains(doc, "10.244.7.0/24") || !strings.Contains(doc, "10.99.0.4") ||
		len(report.OpenObjects) != 0 {
		t.Errorf("open %q, changes %v, %s", report.OpenObjects, report.Changes(), doc)
	}
	if got := report.Changes()[2].String(); !strings.HasPrefix(got,
		`HcnModifyNetwork flannel.4096 {"ResourceType":"Policy","RequestType":"Add"`) {
		t.Errorf("a change is logged as %s", got)
	}
	if got := m.Admin().Adapter("uplink"); addresses(got) != "10.99.0.9/24" {
		t.Errorf("the adapter is %+v", got)
	}
	if _, err := m.Network(id); !errors.Is(err, hns.ErrUnavailable) {
		t.Errorf("the fault returned %v", err)
	}
	if _, err := r.Do(windows.Order{DeleteNetwork: "nat"}); err == nil {
		t.Error("an order that cannot be executed returned no error")
	}
}

// Where nothing listens there is no Remote: the lab closes one that is not nil.
func TestDialRefused(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if r, err := windows.Dial(l.Addr().String()); r != nil || err == nil {
		t.Errorf("Dial returned %v, %v", r, err)
	}
}
