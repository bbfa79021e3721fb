package plugin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// Endpoint holds the properties of a pod's HNS endpoint that CHECK compares.
type Endpoint struct {
	Network   string // name of its HNS network
	Namespace string // ID of its HNS namespace, without braces
	IPs       []netip.Addr
	Policies  []policy
}

// policy is a policy of an HNS endpoint.
type policy struct {
	Type     string
	Settings any // decoded JSON; nil: none
}

// errNoEndpoint means that there is no HNS endpoint of that name.
var errNoEndpoint = errors.New("HNS endpoint not found")

// endpointTimeout is the timeout for reading an endpoint from HNS.
const endpointTimeout = 10 * time.Second

// checkEndpoint returns an error if a pod's HNS endpoint is missing or differs
// from what ADD set up.
func (p *Plugin) checkEndpoint(ctx context.Context, c *conf, d delegate, args *skel.CmdArgs) error {
	at, err := c.attachment(p.OS, args)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, endpointTimeout)
	defer cancel()
	// All four delegates give it this name. at.id is the ID of the sandbox container.
	// With Docker, CNI_CONTAINERID may be that of another container (see attachment).
	name := at.id + "_" + d.conf.text("name")
	e, err := p.Endpoint(ctx, name)
	if errors.Is(err, errNoEndpoint) {
		return endpointError("HNS endpoint %s not found", name)
	} else if err != nil {
		return cniError(types.ErrInternal, "read HNS endpoint %s: %w", name, err)
	}
	addrs, err := returnedIPs(c)
	if err != nil {
		return cniError(types.ErrDecodingFailure, "prevResult: %w", err)
	}
	if problems := e.differences(d, addrs, args.Netns); len(problems) > 0 {
		return endpointError("HNS endpoint %s: %s", name, strings.Join(problems, "; "))
	}
	return nil
}

// endpointError returns an error of CHECK with what to do.
func endpointError(format string, args ...any) error {
	return &types.Error{
		Code:    errEndpointDiffers,
		Msg:     fmt.Sprintf(format, args...),
		Details: "delete the pod so that it is recreated",
	}
}

// returnedIPs returns the addresses in prevResult, the result of ADD.
func returnedIPs(c *conf) (addrs []netip.Addr, err error) {
	result, err := decodeResult(c.version(), c.PrevResult)
	if err != nil {
		return nil, err
	}
	converted, err := types100.NewResultFromResult(result)
	if err != nil {
		return nil, err
	}
	for _, ip := range converted.IPs {
		if a, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			addrs = append(addrs, a.Unmap())
		}
	}
	return addrs, nil
}

// differences compares the endpoint with the delegate's configuration, with the
// addresses that ADD returned and with CNI_NETNS.
func (e Endpoint) differences(d delegate, ips []netip.Addr, netns string) (problems []string) {
	problem := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	if network := d.conf.text("name"); e.Network != network {
		problem("in the network %q, want %q", e.Network, network)
	}
	// CNI_NETNS is the GUID of an HNS namespace, maybe in braces, except with
	// Docker, which passes "none" or "container:ID".
	if strings.Count(netns, "-") == 4 && !strings.EqualFold(strings.Trim(netns, "{}"), e.Namespace) {
		problem("in the namespace %q, want %q", e.Namespace, netns)
	}
	for _, ip := range ips {
		if !slices.Contains(e.IPs, ip) {
			problem("addresses %v without %s", e.IPs, ip)
		}
	}
	for _, want := range d.policies() {
		if !slices.ContainsFunc(e.Policies, want.satisfiedBy) {
			text, _ := json.Marshal(want.Settings) // with many exceptions it is long, so 300 bytes of it are shown
			problem("no policy %s with %.300s", want.Type, text)
		}
	}
	return problems
}

// policies returns the policies that the delegate was configured to add to the
// endpoint: from "policies" for win-bridge and win-overlay, from
// "AdditionalArgs" for sdnbridge and sdnoverlay, and one for each port mapping
// of the runtime. It returns none if they have a form that it cannot read:
// ADD passed them to the delegate unread, so CHECK does not reject them.
func (d delegate) policies() (policies []policy) {
	type argument struct {
		Name  string
		Value map[string]any
	}
	var c struct {
		Policies       []argument
		AdditionalArgs []argument
		RuntimeConfig  struct {
			PortMappings []struct{ HostPort, ContainerPort int }
		}
	}
	if json.Unmarshal(d.bytes(), &c) != nil {
		return nil
	}
	for _, a := range slices.Concat(c.Policies, c.AdditionalArgs) {
		if kind, ok := a.Value["Type"].(string); ok && strings.EqualFold(a.Name, "EndpointPolicy") {
			p := policy{Type: kind, Settings: a.Value["Settings"]}
			if p.Settings == nil { // HNS v1 schema: the settings are beside the type
				delete(a.Value, "Type")
				p.Settings = a.Value
			}
			policies = append(policies, p)
		}
	}
	// Only the ports are compared: the runtime gives the protocol as a name, and HNS
	// as a number.
	for _, m := range c.RuntimeConfig.PortMappings {
		ports := map[string]any{"ExternalPort": float64(m.HostPort), "InternalPort": float64(m.ContainerPort)} // as json decodes
		policies = append(policies, policy{"PortMapping", ports})
	}
	return policies
}

// schemaV2 maps names of the HNS v1 schema to those of v2, in lower case.
var schemaV2 = map[string]string{"route": "sdnroute", "nat": "portmapping", "pa": "provideraddress", "exceptionlist": "exceptions"}

// canonical returns the HNS v2 name of a policy type or setting, in lower case.
func canonical(name string) string {
	name = strings.ToLower(name)
	return cmp.Or(schemaV2[name], name)
}

// satisfiedBy reports whether actual has the type and the settings of p.
func (p policy) satisfiedBy(actual policy) bool {
	return canonical(p.Type) == canonical(actual.Type) && includes(actual.Settings, p.Settings)
}

// includes reports whether actual includes the settings in want. HNS omits some
// settings when it returns a policy, and spells keys and values in another case.
// So a missing key, or null in the place of an object, is not a difference, and
// case is ignored. A list may have further elements, because delegates add some,
// but null in the place of a list is an empty list, which lacks the elements of want.
func includes(actual, want any) bool {
	switch w := want.(type) {
	case nil:
		return true
	case map[string]any:
		a, ok := actual.(map[string]any)
		if !ok {
			return actual == nil
		}
		byName := map[string]any{}
		for k, v := range a {
			byName[canonical(k)] = v
		}
		for k, v := range w {
			if actualValue, ok := byName[canonical(k)]; ok && !includes(actualValue, v) {
				return false
			}
		}
		return true
	case []any:
		a, ok := actual.([]any)
		return ok && !slices.ContainsFunc(w, func(wanted any) bool {
			return !slices.ContainsFunc(a, func(element any) bool { return includes(element, wanted) })
		})
	}
	return strings.EqualFold(fmt.Sprint(want), fmt.Sprint(actual)) // texts, numbers, booleans
}
