package hns

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"flannel/pkg/dataplane"
)

var (
	ip  = netip.MustParseAddr
	pfx = netip.MustParsePrefix

	same = []cmp.Option{cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), cmpopts.EquateEmpty()}
)

func hw(s string) dataplane.MAC {
	m, err := dataplane.ParseMAC(s)
	if err != nil {
		panic(err)
	}
	return m
}

// A document that flannel's exe sent, as it was recorded, but for the empty objects MacPool, Dns and Health.
const askedOverlay = `{"Name":"flannel.4096","Type":"Overlay","Policies":[{"Type":"NetAdapterName","Settings":{"NetworkAdapterName":"Ethernet"}}],` +
	`"Ipams":[{"Type":"Static","Subnets":[{"IpAddressPrefix":"10.244.52.0/24","Policies":[{"Type":"VSID","Settings":{"IsolationId":4096}}],` +
	`"Routes":[{"NextHop":"10.244.52.1","DestinationPrefix":"0.0.0.0/0"}]}]}],"Flags":8,"SchemaVersion":{"Major":2,"Minor":0}}`

func TestEncodeNetwork(t *testing.T) {
	overlay := Network{Name: "flannel.4096", Type: Overlay, Adapter: "Ethernet", NonPersistent: true,
		Subnets: []Subnet{{Prefix: pfx("10.244.52.0/24"), Gateway: ip("10.244.52.1"), VSID: 4096}}}
	all := overlay
	all.Name, all.Adapter, all.VxlanPort, all.NonPersistent = "a <b> & c", `Ethernet "2"`, 8472, false
	all.MACs = [2]dataplane.MAC{hw("0e:2a:00:00:00:00"), hw("0e:2a:ff:ff:ff:ff")}
	all.Subnets = []Subnet{{Prefix: pfx("10.244.52.7/24"), VSID: 1<<24 - 1}}
	bridge := Network{Name: "cbr0", Type: L2Bridge, Adapter: "Ethernet", NonPersistent: true, DNS: []string{"10.96.0.10", "fd00::a"},
		Subnets: []Subnet{{Prefix: pfx("10.244.15.0/24"), Gateway: ip("10.244.15.1")}, {Prefix: pfx("fd00:15::/64"), Gateway: ip("fd00:15::1")}}}
	for _, c := range []struct {
		name string
		n    Network
		want string
	}{
		{"as flannel", overlay, askedOverlay},
		{"all there is", all, `{"Name":"a <b> & c","Type":"Overlay","Policies":[{"Type":"NetAdapterName","Settings":{"NetworkAdapterName":"Ethernet \"2\""}},` +
			`{"Type":"VxlanPort","Settings":{"Port":8472}}],"MacPool":{"Ranges":[{"StartMacAddress":"0E-2A-00-00-00-00","EndMacAddress":"0E-2A-FF-FF-FF-FF"}]},` +
			`"Ipams":[{"Type":"Static","Subnets":[{"IpAddressPrefix":"10.244.52.0/24","Policies":[{"Type":"VSID","Settings":{"IsolationId":16777215}}]}]}],` +
			`"SchemaVersion":{"Major":2,"Minor":0}}`},
		{"bridge, both families", bridge, `{"Name":"cbr0","Type":"L2Bridge","Policies":[{"Type":"NetAdapterName","Settings":{"NetworkAdapterName":"Ethernet"}}],` +
			`"Dns":{"ServerList":["10.96.0.10","fd00::a"]},"Ipams":[{"Type":"Static","Subnets":[{"IpAddressPrefix":"10.244.15.0/24",` +
			`"Routes":[{"NextHop":"10.244.15.1","DestinationPrefix":"0.0.0.0/0"}]},{"IpAddressPrefix":"fd00:15::/64",` +
			`"Routes":[{"NextHop":"fd00:15::1","DestinationPrefix":"::/0"}]}]}],"Flags":8,"SchemaVersion":{"Major":2,"Minor":0}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := EncodeNetwork(c.n)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.want, string(got)); d != "" {
				t.Error(d)
			}
			back, err := DecodeNetwork(got)
			if err != nil {
				t.Fatal(err)
			}
			back.Policies, c.n.Subnets[0].Prefix = nil, c.n.Subnets[0].Prefix.Masked()
			if d := cmp.Diff(c.n, back, same...); d != "" {
				t.Error(d)
			}
		})
	}
	overlay.Subnets[0].VSID = 1 << 24
	if got, err := EncodeNetwork(overlay); err == nil {
		t.Errorf("a VSID of 25 bits became %s", got)
	}
}

// What HNS answered in the end, as it was recorded, with a field and white space put in.
const answeredOverlay = `{"ID":"49e9bc09-a14e-4692-9e30-963be44cb6f3","Name":"flannel.4096","Type":"Overlay","New":{"a":[1]},` +
	`"Policies":[{"Type":"NetAdapterName","Settings":{"NetworkAdapterName":"Ethernet"}},{"Type":"DrMacAddress","Settings":{"Address":"00-15-5D-D7-19-E4"}},` +
	`{"Type":"HostRoute","Settings":{}},{"Type":"HostRoute"},` +
	`{"Type":"RemoteSubnetRoute","Settings":{"DestinationPrefix":"10.244.7.0/24", "IsolationId":4096,"ProviderAddress":"10.99.0.4",` + "\n" +
	`"DistributedRouterMacAddress":"a2:0b:cc:dd:ee:02","Fresh":"<&>"}},{"Type":"ProviderAddress","Settings":{"ProviderAddress":"10.99.0.2"}},` +
	`{"Type":"VxlanPort","Settings":{"Port":4789}}],` +
	`"MacPool":{"Ranges":[{"StartMacAddress":"00-15-5D-DC-30-00","EndMacAddress":"00-15-5D-DC-3F-FF"}]},"Dns":{},"Ipams":[{"Type":"Static","Subnets":` +
	`[{"IpAddressPrefix":"10.244.52.0/24","Policies":[{"Type":"VLAN","Settings":{}},{"Type":"VSID","Settings":{"IsolationId":4096}}],` +
	`"Routes":[{"NextHop":"10.244.52.9","DestinationPrefix":"10.0.0.0/8"},{"NextHop":"10.244.52.1","DestinationPrefix":"0.0.0.0/0"}]}]}],` +
	`"Flags":8,"Health":{"Extra":{}},"SchemaVersion":{"Major":2,"Minor":0}}`

func TestDecodeNetwork(t *testing.T) {
	n, err := DecodeNetwork(json.RawMessage(answeredOverlay))
	if err != nil {
		t.Fatal(err)
	}
	policies := n.Policies
	n.Policies = nil
	want := Network{ID: "49e9bc09-a14e-4692-9e30-963be44cb6f3", Name: "flannel.4096", Type: Overlay, Adapter: "Ethernet",
		Subnets: []Subnet{{Prefix: pfx("10.244.52.0/24"), Gateway: ip("10.244.52.1"), VSID: 4096}},
		MACs:    [2]dataplane.MAC{hw("00-15-5D-DC-30-00"), hw("00-15-5D-DC-3F-FF")}, NonPersistent: true, VxlanPort: 4789,
		ManagementIP: ip("10.99.0.2"), DRMAC: hw("00-15-5d-d7-19-e4"), HostRoute: true}
	if d := cmp.Diff(want, n, same...); d != "" {
		t.Error(d)
	}
	if len(policies) != 7 || !policies[4].IsRemoteSubnet() || policies[0].IsRemoteSubnet() {
		t.Fatalf("policies: %v", policies)
	}
	// HNS gets back what it had, byte for byte, in a document that is still JSON.
	request := encodeRequest("Remove", policies[3:5])
	if !strings.Contains(answeredOverlay, string(policies[4].Settings)) || !strings.Contains(string(request), string(policies[4].Settings)) {
		t.Errorf("%s\nbecame\n%s", answeredOverlay, request)
	}
	var sent struct {
		ResourceType, RequestType string
		Settings                  struct{ Policies []Policy }
	}
	if err := json.Unmarshal(request, &sent); err != nil {
		t.Fatalf("%v: %s", err, request)
	}
	if sent.ResourceType != "Policy" || sent.RequestType != "Remove" || len(sent.Settings.Policies) != 2 || sent.Settings.Policies[0].Settings != nil {
		t.Errorf("%+v", sent)
	}
}

func TestDecodeNetworkTooEarly(t *testing.T) {
	// While the management address is on its way, HNS may leave policies out, or have them empty.
	n, err := DecodeNetwork(json.RawMessage(`{"Name":"x","Policies":[{"Type":"ProviderAddress","Settings":{"ProviderAddress":""}},{"Type":"DrMacAddress","Settings":{}}],
		"MacPool":{"Ranges":[{}]}}`))
	if err != nil || n.ManagementIP.IsValid() || n.DRMAC != (dataplane.MAC{}) {
		t.Error(n, err)
	}
}

func TestRemoteSubnet(t *testing.T) {
	r := RemoteSubnet{Prefix: pfx("10.244.7.0/24"), VSID: 70000, Provider: ip("10.99.0.3"), MAC: hw("a2:0b:cc:dd:ee:01")}
	p := r.Policy()
	const want = `{"DestinationPrefix":"10.244.7.0/24","IsolationId":70000,"ProviderAddress":"10.99.0.3","DistributedRouterMacAddress":"A2-0B-CC-DD-EE-01"}`
	if string(p.Settings) != want || p.Type != "RemoteSubnetRoute" {
		t.Errorf("%s\nwant %s", p.Settings, want)
	}
	// flannel writes MACs with colons, and HNS keeps them.
	for _, settings := range []string{want, strings.Replace(want, "A2-0B-CC-DD-EE-01", "a2:0b:cc:dd:ee:01", 1)} {
		got, err := Policy{p.Type, json.RawMessage(settings)}.RemoteSubnet()
		if err != nil || got != r {
			t.Errorf("%s: %v %v", settings, got, err)
		}
	}
	for name, bad := range map[string]Policy{
		"other type": HostRoutePolicy(),
		"nothing":    {Type: p.Type},
		"no JSON":    {p.Type, json.RawMessage(`{"x`)},
		"no prefix":  {p.Type, json.RawMessage(strings.Replace(want, "10.244.7.0/24", "10.244.7.0", 1))},
		"no address": {p.Type, json.RawMessage(strings.Replace(want, "10.99.0.3", "", 1))},
		"no MAC":     {p.Type, json.RawMessage(strings.Replace(want, "-01", "", 1))},
		"VNI":        {p.Type, json.RawMessage(strings.Replace(want, "70000", "-1", 1))},
	} {
		if got, err := bad.RemoteSubnet(); err == nil || got != (RemoteSubnet{}) {
			t.Errorf("%s: %v", name, got)
		} else {
			t.Log(err)
		}
	}
}

func TestEndpoint(t *testing.T) {
	host := Endpoint{Name: "cbr0_ep", Network: "2aa40903-a91d-443e-bd94-dfd6205f8274", IPs: []netip.Prefix{pfx("10.244.15.2/24"), pfx("fd00:15::2/64")},
		Gateways: []netip.Addr{ip("10.244.15.1"), ip("fd00:15::1")}}
	remote := Endpoint{Name: "peer", Network: host.Network, IPs: []netip.Prefix{pfx("10.244.7.0/24")}, MAC: hw("a2:0b:cc:dd:ee:01"),
		Remote: true, Provider: ip("10.99.0.3")}
	for _, c := range []struct {
		e    Endpoint
		want string
	}{
		{host, `{"Name":"cbr0_ep","HostComputeNetwork":"2aa40903-a91d-443e-bd94-dfd6205f8274","IpConfigurations":[{"IpAddress":"10.244.15.2","PrefixLength":24},` +
			`{"IpAddress":"fd00:15::2","PrefixLength":64}],"Routes":[{"NextHop":"10.244.15.1","DestinationPrefix":"0.0.0.0/0"},` +
			`{"NextHop":"fd00:15::1","DestinationPrefix":"::/0"}],"SchemaVersion":{"Major":2,"Minor":0}}`},
		{remote, `{"Name":"peer","HostComputeNetwork":"2aa40903-a91d-443e-bd94-dfd6205f8274","Policies":[{"Type":"ProviderAddress","Settings":{"ProviderAddress":"10.99.0.3"}}],` +
			`"IpConfigurations":[{"IpAddress":"10.244.7.0","PrefixLength":24}],"MacAddress":"A2-0B-CC-DD-EE-01","Flags":1,"SchemaVersion":{"Major":2,"Minor":0}}`},
	} {
		got := EncodeEndpoint(c.e)
		if d := cmp.Diff(c.want, string(got)); d != "" {
			t.Error(d)
		}
		back, err := DecodeEndpoint(got)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(c.e, back, same...); d != "" {
			t.Error(d)
		}
	}
	// Those of pods have what we have no use for, and lack what we know.
	for document, want := range map[string]string{
		`{"ID":"1","Name":"pod","IpConfigurations":[{"IpAddress":"10.244.15.9"},{}],"Routes":[{"DestinationPrefix":"x"}],"Policies":[{"Type":"ACL","Settings":7}],"New":1}`: "",
		`[]`:                     "endpoint",
		`{"MacAddress":"quite"}`: `"quite"`,
		`{"Name":"e","IpConfigurations":[{"IpAddress":"10.1.1.1","PrefixLength":99}]}`: "endpoint e: 10.1.1.1",
	} {
		_, err := DecodeEndpoint(json.RawMessage(document))
		if got := text(err); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", document, got, want)
		}
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// FuzzDocuments: whatever comes is read, or refused with an error; and what is read of a policy goes back unchanged.
func FuzzDocuments(f *testing.F) {
	for _, seed := range []string{askedOverlay, answeredOverlay, "", "null", "[]", "{", `{"Policies":[{"Type":"VSID","Settings":"x"}]}`,
		`{"Policies":[{"Type":"ProviderAddress","Settings":{"ProviderAddress":7}}]}`, `{"Ipams":[{"Subnets":[{"IpAddressPrefix":"::/129"}]}]}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, document []byte) {
		identify(document)
		if e, err := DecodeEndpoint(document); err == nil {
			if _, err := DecodeEndpoint(EncodeEndpoint(e)); err != nil {
				t.Errorf("%s: %v", document, err)
			}
		}
		n, err := DecodeNetwork(document)
		if err != nil {
			return
		}
		for _, p := range n.Policies {
			if r, err := p.RemoteSubnet(); err == nil && r.VSID <= maxVSID {
				back, err := r.Policy().RemoteSubnet()
				if r.Prefix = r.Prefix.Masked(); err != nil || back != r {
					t.Errorf("%v became %v: %v", r, back, err)
				}
			}
		}
		request := encodeRequest("Remove", n.Policies)
		if !json.Valid(request) {
			t.Errorf("%s became %s", document, request)
		}
	})
}
