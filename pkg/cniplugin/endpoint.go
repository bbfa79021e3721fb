package cniplugin

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

// Endpoint is what CHECK compares of a pod's HNS endpoint.
type Endpoint struct {
	Network   string // its name
	Namespace string // the ID of the HNS namespace that it is in
	IPs       []netip.Addr
	Policies  []Policy
}

// Policy is a policy of an endpoint.
type Policy struct {
	Type     string
	Settings any // as package json decodes it
}

// ErrNoEndpoint means that HNS has no endpoint of that name.
var ErrNoEndpoint = errors.New("HNS has no such endpoint")

// endpointLimit bounds how long HNS is waited for.
const endpointLimit = 10 * time.Second

// checkEndpoint finds what of a pod's endpoint is not as ADD left it.
func (p *Plugin) checkEndpoint(ctx context.Context, c *conf, d delegate, args *skel.CmdArgs) error {
	at, err := c.attachment(p.OS, args)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, endpointLimit)
	defer cancel()
	name := at.id + "_" + d.conf.text("name") // by which all four delegates call it
	e, err := p.Endpoint(ctx, name)
	if errors.Is(err, ErrNoEndpoint) {
		return &types.Error{Code: errEndpointDiffers, Msg: fmt.Sprintf("HNS has no endpoint %s", name), Details: "delete the pod so that it is made again"}
	} else if err != nil {
		return cniError(types.ErrInternal, "ask HNS for endpoint %s: %w", name, err)
	}
	wanted, err := wantedIPs(c)
	if err != nil {
		return cniError(types.ErrDecodingFailure, "prevResult: %w", err)
	}
	if problems := e.differences(d, wanted, args.Netns); len(problems) > 0 {
		return &types.Error{Code: errEndpointDiffers, Msg: fmt.Sprintf("endpoint %s: %s", name, strings.Join(problems, "; ")),
			Details: "delete the pod so that it is made again"}
	}
	return nil
}

// wantedIPs are the addresses that ADD has returned.
func wantedIPs(c *conf) (all []netip.Addr, err error) {
	result, err := decodeResult(c.version(), c.PrevResult)
	if err != nil {
		return nil, err
	}
	now, err := types100.NewResultFromResult(result)
	if err != nil {
		return nil, err
	}
	for _, ip := range now.IPs {
		if a, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			all = append(all, a.Unmap())
		}
	}
	return all, nil
}

func (e Endpoint) differences(d delegate, ips []netip.Addr, netns string) (problems []string) {
	problem := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	if network := d.conf.text("name"); e.Network != network {
		problem("it is in the network %q, not in %q", e.Network, network)
	}
	// Docker's "none" and "container:…" name no namespace of HNS.
	if strings.Count(netns, "-") == 4 && !strings.EqualFold(strings.Trim(netns, "{}"), e.Namespace) {
		problem("it is in the namespace %q, not in %q", e.Namespace, netns)
	}
	for _, ip := range ips {
		if !slices.Contains(e.IPs, ip) {
			problem("its addresses are %v, without %s", e.IPs, ip)
		}
	}
	for _, want := range d.policies() {
		if !slices.ContainsFunc(e.Policies, want.covered) {
			text, _ := json.Marshal(want.Settings)
			problem("it has no policy %s with %.300s", want.Type, text)
		}
	}
	return problems
}

// policies are those that the delegate was told to give the endpoint: in "policies" of win-bridge and win-overlay, in
// "AdditionalArgs" of sdnbridge and sdnoverlay, and one for each port that the runtime maps.
func (d delegate) policies() (all []Policy) {
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
			p := Policy{Type: kind, Settings: a.Value["Settings"]}
			if p.Settings == nil { // of HNS's first schema, whose settings stand beside the type
				delete(a.Value, "Type")
				p.Settings = a.Value
			}
			all = append(all, p)
		}
	}
	for _, m := range c.RuntimeConfig.PortMappings {
		all = append(all, Policy{"PortMapping", map[string]any{"ExternalPort": float64(m.HostPort), "InternalPort": float64(m.ContainerPort)}})
	}
	return all
}

// second are the names of HNS's second schema for those of its first.
var second = map[string]string{"route": "sdnroute", "nat": "portmapping", "pa": "provideraddress", "exceptionlist": "exceptions"}

func canonical(name string) string {
	name = strings.ToLower(name)
	return cmp.Or(second[name], name)
}

// covered reports whether what HNS has is the policy, or more than it.
func (p Policy) covered(has Policy) bool {
	return canonical(p.Type) == canonical(has.Type) && covers(p.Settings, has.Settings)
}

// covers reports whether has says all that want says. HNS does not return all that it was told, nor in the same letters:
// what is absent is not known to differ, and lists may be longer, for the delegates add to them.
func covers(want, has any) bool {
	switch w := want.(type) {
	case nil:
		return true
	case map[string]any:
		h, ok := has.(map[string]any)
		if !ok {
			return has == nil
		}
		known := map[string]any{}
		for k, v := range h {
			known[canonical(k)] = v
		}
		for k, v := range w {
			if there, ok := known[canonical(k)]; ok && !covers(v, there) {
				return false
			}
		}
		return true
	case []any:
		h, ok := has.([]any)
		return ok && !slices.ContainsFunc(w, func(v any) bool {
			return !slices.ContainsFunc(h, func(there any) bool { return covers(v, there) })
		})
	}
	return strings.EqualFold(fmt.Sprint(want), fmt.Sprint(has))
}
