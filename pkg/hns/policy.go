package hns

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"

	"flannel/pkg/mac"
)

// maxVSID is the highest number of a VXLAN network.
const maxVSID = 1<<24 - 1

// remoteSubnet is the settings of RemoteSubnetRoute. (IsolationId has 16 bits elsewhere, which truncates.)
type remoteSubnet struct {
	DestinationPrefix           string
	IsolationID                 uint32 `json:"IsolationId"`
	ProviderAddress             string
	DistributedRouterMacAddress string
}

// HostRoutePolicy lets the host and its pods reach each other over an overlay. HNS may need the network's management
// address for it, so it is added after that is there.
func HostRoutePolicy() Policy { return policy(typeHostRoute, struct{}{}) }

// Policy is what HNS is asked to add.
func (r RemoteSubnet) Policy() Policy {
	return policy(typeRemoteSubnet, remoteSubnet{
		DestinationPrefix:           r.Prefix.Masked().String(),
		IsolationID:                 r.VSID,
		ProviderAddress:             r.Provider.String(),
		DistributedRouterMacAddress: dashed(r.MAC),
	})
}

// IsRemoteSubnet tells the policies that RemoteSubnet can read.
func (p Policy) IsRemoteSubnet() bool { return p.Type == typeRemoteSubnet }

// RemoteSubnet reads a policy that leads to a peer, as we or another wrote it.
func (p Policy) RemoteSubnet() (r RemoteSubnet, err error) {
	if !p.IsRemoteSubnet() {
		return r, fmt.Errorf("policy %s is not %s", p.Type, typeRemoteSubnet)
	}
	var s remoteSubnet
	if err = json.Unmarshal(p.Settings, &s); err != nil {
		return RemoteSubnet{}, fmt.Errorf("policy %s: %w", p.Type, err)
	}
	r.VSID = s.IsolationID
	if r.Prefix, err = netip.ParsePrefix(s.DestinationPrefix); err == nil {
		r.Provider, err = netip.ParseAddr(s.ProviderAddress)
	}
	if err == nil {
		r.MAC, err = mac.Parse(s.DistributedRouterMacAddress)
	}
	if err != nil {
		return RemoteSubnet{}, fmt.Errorf("policy %s: %w", p.Type, err)
	}
	return r, nil
}

func policy(kind string, settings any) Policy { return Policy{kind, encode(settings)} }

// encodeRequest makes a ModifyNetworkSettingRequest.
func encodeRequest(request string, policies []Policy) json.RawMessage {
	var b bytes.Buffer
	fmt.Fprintf(&b, `{"ResourceType":"Policy","RequestType":%s,"Settings":{`, encode(request))
	writePolicies(&b, policies)
	b.WriteString("}}")
	return b.Bytes()
}

// writePolicies writes a document's field Policies by hand: the encoder would change white space within settings, and
// HNS is to get them as it had them.
func writePolicies(b *bytes.Buffer, policies []Policy) {
	b.WriteString(`"Policies":[`)
	for i, p := range policies {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(b, `{"Type":%s`, encode(p.Type))
		if len(p.Settings) > 0 {
			fmt.Fprintf(b, `,"Settings":%s`, p.Settings)
		}
		b.WriteByte('}')
	}
	b.WriteByte(']')
}

// encode marshals what cannot fail to be marshalled: our own structs and strings.
func encode(v any) json.RawMessage {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}
