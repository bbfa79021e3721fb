package hnstest_test

import (
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"flannel/internal/test/hnstest"
	"flannel/pkg/windows/hns"
)

// document is a network as flanneld requests it.
func document(name, kind string, vsid int, policies ...string) json.RawMessage {
	subnet := `"IpAddressPrefix":"10.244.5.0/24","Routes":[{"NextHop":"10.244.5.1","DestinationPrefix":"0.0.0.0/0"}]`
	if vsid != 0 {
		b, _ := json.Marshal(vsid)
		subnet += `,"Policies":[{"Type":"VSID","Settings":{"IsolationId":` + string(b) + `}}]`
	}
	return json.RawMessage(`{"Name":"` + name + `","Type":"` + kind + `","Policies":[` + strings.Join(policies, ",") +
		`],"Ipams":[{"Type":"Static","Subnets":[{` + subnet + `}]}],"Flags":8,"SchemaVersion":{"Major":2,"Minor":0}}`)
}

func onAdapter(name string) string {
	return `{"Type":"NetAdapterName","Settings":{"NetworkAdapterName":"` + name + `"}}`
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
	var n struct{ ID string }
	if err := json.Unmarshal(made, &n); err != nil || n.ID == "" {
		t.Fatalf("%v in %s", err, made)
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

// The first network on an adapter moves its address to a virtual adapter. HNS
// learns the address later still.
func TestAddressMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := hnstest.New()
		defer m.Close()
		m.Turn(func(k *hnstest.Knobs) {
			k.Outage, k.ManagementIP, k.DRMAC = 10*time.Second, 5*time.Second,
				time.Second
		})
		before := m.Admin().Adapter("Ethernet")
		id := create(t, m, document("flannel.4096", hns.Overlay, 4096))

		if got := addresses(m.Admin().Adapter("Ethernet")) + addresses(m.Admin().Adapter("vEthernet (Ethernet)")); got != "" {
			t.Errorf("during the outage the adapters have %s", got)
		}
		if _, _, err := m.BestRoute(netip.MustParseAddr("1.1.1.1")); err == nil {
			t.Error("during the outage there is a default route")
		}
		for _, step := range []struct {
			after time.Duration
			want  []string // in the network's document
			not   []string
		}{
			{0, nil, []string{"DrMacAddress", "ProviderAddress"}},
			{9 * time.Second, []string{"DrMacAddress"}, []string{"ProviderAddress"}},
			{4 * time.Second, []string{"DrMacAddress"}, []string{"ProviderAddress"}},
			{3 * time.Second, []string{"DrMacAddress", `"ProviderAddress":"10.99.0.2"`}, nil},
		} {
			time.Sleep(step.after)
			synctest.Wait()
			doc, err := m.Network(id)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range step.want {
				if !strings.Contains(string(doc), s) {
					t.Errorf("after %v more: no %s in %s", step.after, s, doc)
				}
			}
			for _, s := range step.not {
				if strings.Contains(string(doc), s) {
					t.Errorf("after %v more: %s is in the document too early", step.after, s)
				}
			}
		}
		after := m.Admin().Adapter("vEthernet (Ethernet)")
		if addresses(after) != "10.99.0.2/24" || after.Index == before.Index || after.MAC != before.MAC ||
			len(after.DNS) != 1 {
			t.Errorf("the virtual adapter is %+v, was %+v", after, before)
		}
		route, source, err := m.BestRoute(netip.MustParseAddr("1.1.1.1"))
		if err != nil || route.NextHop != hnstest.Gateway || route.Index != after.Index ||
			source != hnstest.HostAddr.Addr() {
			t.Errorf("the default route is %+v from %v (%v)", route, source, err)
		}
		if err := m.DeleteNetwork(id); err != nil {
			t.Fatal(err)
		}
		time.Sleep(11 * time.Second)
		if got := m.Admin().Adapter("Ethernet"); addresses(got) != "10.99.0.2/24" {
			t.Errorf("after the network was deleted the adapter is %+v", got)
		}
		if m.OpenHandles() != 0 || len(m.Trouble()) != 0 {
			t.Errorf("%d open handles, %v", m.OpenHandles(), m.Trouble())
		}
	})
}

func TestRefusals(t *testing.T) {
	m := hnstest.New()
	defer m.Close()
	id := create(t, m, document("flannel.4096", hns.Overlay, 4096))
	peer := remoteSubnet("10.244.7.0/24", "10.99.0.3", "A2-0B-CC-DD-EE-01")
	if err := m.ModifyNetwork(id, request("Add", peer)); err != nil {
		t.Fatal(err)
	}
	network := func(d json.RawMessage) error { _, err := m.CreateNetwork(d); return err }
	for name, c := range map[string]struct {
		err  error
		want any // a sentinel of package hns, or a Code
	}{
		"same name": {network(document("flannel.4096", hns.Overlay, 4096)), hns.ErrExists},
		"virtual adapter": {network(document("b", hns.Overlay, 4097, onAdapter("vEthernet (Ethernet)"))),
			hns.AdapterNotFound},
		"VSID":      {network(document("b", hns.Overlay, 4095)), hns.Code(0x80070057)},
		"type":      {network(document("b", "Underlay", 0)), hns.InvalidNetworkType},
		"duplicate": {m.ModifyNetwork(id, request("Add", peer)), hns.ErrExists},
		"remove with others": {m.ModifyNetwork(id, request("Remove", strings.Replace(peer, "EE-01", "EE-02", 1))),
			hns.ErrNotFound},
		"unknown network": {m.DeleteNetwork("5f0b1190-63be-4e0c-b974-bd0f55675a42"), hns.ErrNotFound},
		"batch": {m.ModifyNetwork(id,
			request("Add", remoteSubnet("10.244.8.0/24", "10.99.0.4", "A2-0B-CC-DD-EE-02"), peer)), hns.ErrExists},
	} {
		var e *hns.Error
		if sentinel, ok := c.want.(error); ok && !errors.Is(c.err, sentinel) || !errors.As(c.err, &e) || !ok &&
			e.Code != c.want {
			t.Errorf("%s: %v, want %v", name, c.err, c.want)
		}
	}
	doc, _ := m.Network(id)
	if strings.Contains(string(doc), "10.244.8.0/24") {
		t.Error("a refused batch changed the network")
	}
	if err := m.ModifyNetwork(id, request("Remove", peer)); err != nil {
		t.Error(err)
	}
	if m.OpenHandles() != 0 {
		t.Errorf("%d open handles", m.OpenHandles())
	}
}

func mustPrefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// SetDNS replaces the servers of the families in the list, and by that those of DHCP, which
// are no manual ones. The others stay.
func TestSetDNS(t *testing.T) {
	m := hnstest.NewFor(t)
	index := m.Admin().Adapter("Ethernet").Index
	for _, c := range []struct{ set, want string }{
		{"", "10.99.0.1"},
		{"fd00::53", "10.99.0.1 fd00::53"},
		{"9.9.9.9 8.8.8.8", "9.9.9.9 8.8.8.8 fd00::53"},
		{"fd00::54 1.1.1.1", "1.1.1.1 fd00::54"},
	} {
		if err := m.SetDNS(index, ips(c.set)); err != nil {
			t.Error(err)
		}
		manual, err := m.ManualDNS(index)
		if got := m.Admin().Adapter("Ethernet").DNS; !slices.Equal(got, ips(c.want)) || !slices.Equal(manual, got) || err != nil {
			t.Errorf("with %q set there are %v, manual %v (%v)", c.set, got, manual, err)
		}
	}
	m.Turn(func(k *hnstest.Knobs) { k.BecomesDHCP = true })
	create(t, m, document("cbr0", hns.L2Bridge, 0))
	index = m.Admin().Adapter("vEthernet (Ethernet)").Index
	for _, c := range []struct{ set, want string }{
		{"", ""}, {"fd00::53", "fd00::53"}, {"9.9.9.9", "9.9.9.9 fd00::53"},
	} {
		if err := m.SetDNS(index, ips(c.set)); err != nil {
			t.Error(err)
		}
		if got, err := m.ManualDNS(index); !slices.Equal(got, ips(c.want)) || err != nil {
			t.Errorf("with %q set beside DHCP, the manual ones are %v (%v)", c.set, got, err)
		}
	}
}

func ips(list string) (all []netip.Addr) {
	for s := range strings.FieldsSeq(list) {
		all = append(all, netip.MustParseAddr(s))
	}
	return all
}
