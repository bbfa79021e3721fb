package plugin

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
)

const winConf = `{"name":"cbr0","type":"win-bridge","runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80}]},"policies":[
	{"name":"EndpointPolicy","value":{"Type":"OutBoundNAT","Settings":{"Exceptions":["10.5.0.0/16"]}}},
	{"name":"endpointpolicy","value":{"Type":"ROUTE","DestinationPrefix":"10.96.0.0/12","NeedEncap":true}},
	{"name":"Other","value":{"Type":"X"}}]}`

const winPolicies = `[{"Type":"OutBoundNAT","Settings":{"Exceptions":["10.5.0.0/16","10.7.0.0/16"]}},
	{"Type":"SDNRoute","Settings":{"DestinationPrefix":"10.96.0.0/12","NeedEncap":true,"AutomaticEncap":false}},
	{"Type":"PortMapping","Settings":{"InternalPort":80,"ExternalPort":8080,"Protocol":6}},{"Type":"ACL"}]`

func TestEndpointDifferences(t *testing.T) {
	d, err := parseSaved([]byte(winConf))
	if err != nil {
		t.Fatal(err)
	}
	const namespace = "5F1EC8A2-0000-4000-8000-00000000000A"
	ip := netip.MustParseAddr("10.5.72.3")
	for want, c := range map[string]struct{ from, to, network, netns string }{
		"":                  {"", "", "cbr0", "{5f1ec8a2-0000-4000-8000-00000000000a}"},
		" ":                 {"", "", "cbr0", "none"},
		"OutBoundNAT":       {"10.5.0.0/16", "10.9.0.0/16", "cbr0", "container:abc"},
		"ROUTE":             {"SDNRoute", "ACL", "cbr0", ""},
		"10.96.0.0/12":      {"10.96.0.0/12", "10.97.0.0/16", "cbr0", ""},
		"PortMapping":       {"8080", "8081", "cbr0", ""},
		`network "old"`:     {"", "", "old", ""},
		"namespace":         {"", "", "cbr0", "00000000-0000-4000-8000-00000000000a"},
		"without 10.5.72.3": {"", "", "cbr0", "ip"},
		"no settings":       {`"Settings":{"DestinationPrefix":"10.96.0.0/12","NeedEncap":true,"AutomaticEncap":false}`, `"Settings":null`, "cbr0", ""},
	} {
		e := Endpoint{Network: c.network, Namespace: namespace, IPs: []netip.Addr{ip}}
		if c.netns == "ip" {
			e.IPs[0] = ip.Next()
		}
		if err := json.Unmarshal([]byte(strings.Replace(winPolicies, c.from, c.to, 1)), &e.Policies); err != nil {
			t.Fatal(err)
		}
		got := strings.Join(e.differences(d, []netip.Addr{ip}, c.netns), "; ")
		if strings.TrimSpace(want) == "" || strings.HasPrefix(want, "no settings") {
			if got != "" {
				t.Errorf("%q: %s", want, got)
			}
		} else if !strings.Contains(got, want) || strings.Contains(got, "; ") {
			t.Errorf("%q: %s", want, got)
		}
	}
	args, err := parseSaved([]byte(`{"name":"cbr0","type":"sdnbridge","AdditionalArgs":[{"Name":"EndpointPolicy","Value":{"Type":"SDNRoute","Settings":{"DestinationPrefix":"1.2.3.4/32"}}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if got := args.policies(); len(got) != 1 || got[0].Type != "SDNRoute" {
		t.Errorf("%+v", got)
	}
}
