package hns

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/Microsoft/hcsshim/hcn"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/windows"
)

// The document for a new network, which we send without hcsshim, says the same after it went through hcsshim's structs.
func TestDocumentsThroughHcsshim(t *testing.T) {
	const had = `{"ID":"5f1ec8a2-0000-4000-8000-00000000000a","Name":"Büro <&>","Type":"Overlay","Flags":8,
		"Policies":[
			{"Type":"NetAdapterName","Settings":{ "NetworkAdapterName" : "a <b> & \u00fc" }},
			{"Type":"HostRoute"},
			{"Type":"VxlanPort","Settings":{"Port":4790}},
			{"Type":"ProviderAddress","Settings":{"ProviderAddress":"10.99.0.2"}},
			{"Type":"DrMacAddress","Settings":{"Address":"00-15-5D-01-02-03"}},
			{"Type":"RemoteSubnetRoute","Settings":{"DestinationPrefix":"10.244.7.0/24",	"IsolationId":16777215, "ProviderAddress":"10.99.0.3","DistributedRouterMacAddress":"a2:0b:cc:dd:ee:01","New":1.50}}],
		"MacPool":{"Ranges":[{"StartMacAddress":"0E-2A-00-00-00-00","EndMacAddress":"0E-2A-FF-FF-FF-FF"}]},
		"Dns":{"ServerList":["10.96.0.10"]},
		"Ipams":[{"Type":"Static","Subnets":[{"IpAddressPrefix":"10.244.5.0/24",
			"Policies":[{"Type":"VSID","Settings":{"IsolationId":16777215}}],
			"Routes":[{"NextHop":"10.244.5.1","DestinationPrefix":"0.0.0.0/0"}]}]}],
		"Health":{"Extra":{}},"SchemaVersion":{"Major":2,"Minor":0},"Newer":[]}`
	want, err := DecodeNetwork(json.RawMessage(had))
	if err != nil {
		t.Fatal(err)
	}
	document, err := EncodeNetwork(want)
	if err != nil {
		t.Fatal(err)
	}
	var theirs hcn.HostComputeNetwork
	if err := json.Unmarshal(document, &theirs); err != nil {
		t.Fatal(err)
	}
	sent, err := json.Marshal(theirs) // what hcsshim's Create would send
	if err != nil {
		t.Fatal(err)
	}
	asked, err := DecodeNetwork(document)
	if err != nil || asked.Subnets[0].VSID != maxVSID || !asked.NonPersistent {
		t.Fatal(asked, err)
	}
	got, err := DecodeNetwork(sent)
	if err != nil {
		t.Fatal(err)
	}
	if got.Adapter != "a <b> & ü" || got.Name != "Büro <&>" {
		t.Errorf("%q on %q", got.Name, got.Adapter)
	}
	got.Policies, asked.Policies = nil, nil // escaped otherwise
	if d := cmp.Diff(asked, got, values); d != "" {
		t.Error(d)
	}
}

var values = cmpopts.EquateComparable(Subnet{}, Network{}.ManagementIP)

func TestEntryPointsMissing(t *testing.T) {
	s := &service{dll: windows.NewLazySystemDLL("no-such-computenetwork.dll")}
	const id = "5f1ec8a2-0000-4000-8000-00000000000a"
	_, notify := s.Notify(func() {})
	_, networks := s.Networks()
	_, network := s.CreateNetwork(json.RawMessage("{}"))
	_, endpoints := s.EndpointIDs(id, "")
	_, one := s.Endpoint(id)
	_, namespaces := s.NamespaceIDs()
	_, namespace := s.Namespace(id)
	_, endpoint := s.CreateEndpoint(id, nil)
	for call, err := range map[string]error{
		"notify": notify, "list networks": networks, "create a network": network, "list endpoints": endpoints, "read an endpoint": one,
		"list namespaces": namespaces, "read a namespace": namespace,
		"create an endpoint": endpoint, "modify": s.ModifyNetwork(id, nil), "delete a network": s.DeleteNetwork(id),
		"delete an endpoint": s.DeleteEndpoint(id), "attach": s.AttachHost(id),
	} {
		if !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s: %v", call, err)
		}
	}
	_, err := s.CreateEndpointV1(id, "cbr0_ep", nil) // the older API is in vmcompute.dll, which this machine may have
	if e, ok := errors.AsType[*Error](err); err == nil || ok && strings.HasPrefix(e.Call, "Hcn") {
		t.Errorf("create an endpoint by the older API: %v", err)
	}
}
