package hns

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	"flannel/pkg/dataplane"
)

// RemoteSubnetType is the type of the policies that RemoteSubnet describes.
const RemoteSubnetType = typeRemoteSubnet

// maxVSID is the highest number of a VXLAN network.
const maxVSID = 1<<24 - 1

// remoteSubnet are the settings of RemoteSubnetRoute. (hcsshim's IsolationId has 16 bits, which would truncate a VSID.)
type remoteSubnet struct {
	DestinationPrefix           netip.Prefix
	IsolationID                 uint32 `json:"IsolationId"`
	ProviderAddress             netip.Addr
	DistributedRouterMacAddress dashedMAC
}

// HostRoutePolicy returns the policy by which the host and its pods reach each other over an overlay. Add it after the
// network has its ManagementIP, which HNS may need for it.
func HostRoutePolicy() Policy { return policy(typeHostRoute, struct{}{}) }

// Policy encodes r as the policy to add.
func (r RemoteSubnet) Policy() Policy {
	return policy(typeRemoteSubnet, remoteSubnet{r.Prefix.Masked(), r.VSID, r.Provider, dashedMAC(r.MAC)})
}

// IsRemoteSubnet reports whether the policy is a RemoteSubnetRoute.
func (p Policy) IsRemoteSubnet() bool { return strings.EqualFold(p.Type, typeRemoteSubnet) }

// IsHostRoute reports whether the policy is HostRoutePolicy.
func (p Policy) IsHostRoute() bool { return strings.EqualFold(p.Type, typeHostRoute) }

// RemoteSubnet decodes a RemoteSubnetRoute, which another program may have written. An error means that the policy leads
// nowhere.
func (p Policy) RemoteSubnet() (RemoteSubnet, error) {
	if !p.IsRemoteSubnet() {
		return RemoteSubnet{}, fmt.Errorf("policy %s is not %s", p.Type, typeRemoteSubnet)
	}
	var s remoteSubnet
	if err := json.Unmarshal(p.Settings, &s); err != nil {
		return RemoteSubnet{}, fmt.Errorf("policy %s: %w", p.Type, err)
	}
	r := RemoteSubnet{s.DestinationPrefix, s.IsolationID, s.ProviderAddress, dataplane.MAC(s.DistributedRouterMacAddress)}
	if !r.Prefix.IsValid() || !r.Provider.IsValid() || r.MAC == (dataplane.MAC{}) {
		return RemoteSubnet{}, fmt.Errorf("policy %s: an address is missing: %.200s", p.Type, p.Settings)
	}
	return r, nil
}

// policy makes a policy of a type.
func policy(kind string, settings any) Policy { return Policy{kind, encode(settings)} }

// encodeRequest encodes a ModifyNetworkSettingRequest; request is "Add" or "Remove".
func encodeRequest(request string, policies []Policy) json.RawMessage {
	var b bytes.Buffer
	fmt.Fprintf(&b, `{"ResourceType":"Policy","RequestType":%s,"Settings":{`, encode(request))
	writePolicies(&b, policies)
	b.WriteString("}}")
	return b.Bytes()
}

// writePolicies writes a document's field Policies. It does not use the encoder, which would change white space within
// settings, while HNS must get them byte for byte.
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

// encode marshals our own structs and strings, for which json.Marshal cannot fail.
func encode(v any) json.RawMessage {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}
