package hns

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Timing holds the timeouts of a Client. A zero field means the default.
type Timing struct {
	Query  time.Duration // for a call that reads: 10 s
	Change time.Duration // for a call that creates, modifies or deletes: 60 s
	Poll   time.Duration // interval of Changes if HNS has no notifications: 10 s
}

// Client calls HNS with timeouts, which HNS itself does not have. It is safe for concurrent use.
type Client struct {
	calls  Calls
	timing Timing

	mu   sync.Mutex
	hung map[*pendingCall]bool // calls that timed out and have not returned yet; see run.go

	made, changed atomic.Uint64 // calls; see Counts
}

// NewClient returns a Client. All use of calls must go through it, because it makes no call while another one hangs.
func NewClient(calls Calls, t Timing) *Client {
	t.Query = cmp.Or(t.Query, 10*time.Second)
	t.Change = cmp.Or(t.Change, time.Minute)
	t.Poll = cmp.Or(t.Poll, 10*time.Second)
	return &Client{calls: calls, timing: t, hung: map[*pendingCall]bool{}}
}

// Counts returns how many calls were made, and how many of them create, modify or delete something. Tests compare them.
func (c *Client) Counts() (calls, changes uint64) { return c.made.Load(), c.changed.Load() }

// Version returns the version of HNS.
func (c *Client) Version(ctx context.Context) (Version, error) {
	return query(ctx, c, "ask HNS for its version", c.calls.Version)
}

// Networks returns all networks, including those of other programs. A network whose document cannot be decoded has only
// ID, Name and Unread. An L2Bridge has no ManagementIP here; use method ManagementIP.
func (c *Client) Networks(ctx context.Context) ([]Network, error) {
	documents, err := query(ctx, c, "list networks", c.calls.Networks)
	if err != nil {
		return nil, err
	}
	var all []Network
	for _, document := range documents {
		n, err := DecodeNetwork(document)
		if err != nil {
			n = Network{Unread: err}
			n.ID, n.Name = identify(document)
		}
		all = append(all, n)
	}
	return all, nil
}

// Network returns the first network with a name, which need not be unique in HNS, or ErrNotFound.
func (c *Client) Network(ctx context.Context, name string) (Network, error) {
	all, err := query(ctx, c, "list networks", c.calls.Networks)
	if err != nil {
		return Network{}, err
	}
	for _, document := range all {
		if _, found := identify(document); found != name {
			continue // without decoding it: it may be of a kind that we do not know
		}
		n, err := DecodeNetwork(document)
		if err != nil {
			return Network{}, fmt.Errorf("network %s: %w", name, err)
		}
		if n.Type == L2Bridge && !n.ManagementIP.IsValid() { // the document of a bridge does not contain it
			n.ManagementIP, err = c.ManagementIP(ctx, n.ID)
		}
		return n, err
	}
	return Network{}, fmt.Errorf("network %s: %w", name, ErrNotFound)
}

// Documents returns the documents of all networks and of all their endpoints, unchanged, for the bundle of flanneld
// doctor. After an error it returns what it has read.
func (c *Client) Documents(ctx context.Context) (networks, endpoints []json.RawMessage, err error) {
	if networks, err = query(ctx, c, "list networks", c.calls.Networks); err != nil {
		return nil, nil, err
	}
	for _, document := range networks {
		id, _ := identify(document)
		if id == "" {
			continue
		}
		of, err := c.endpoints(ctx, id, "")
		endpoints = append(endpoints, of...)
		if err != nil {
			return networks, endpoints, err
		}
	}
	return networks, endpoints, nil
}

// ManagementIP returns the host's address on the network with this ID; zero while HNS has not assigned it.
func (c *Client) ManagementIP(ctx context.Context, id string) (netip.Addr, error) {
	return query(ctx, c, "ask for the management address of network "+id, func() (netip.Addr, error) {
		return c.calls.ManagementIP(id)
	})
}

// CreateNetwork creates a network and returns it as HNS created it. This may bind the adapter to a virtual switch, so
// that the host loses its addresses for some seconds. HNS may set ManagementIP, DRMAC and policies only after the return.
// After ErrTimeout, HNS may still create it.
func (c *Client) CreateNetwork(ctx context.Context, n Network) (Network, error) {
	document, err := EncodeNetwork(n)
	if err != nil {
		return Network{}, fmt.Errorf("create network %s: %w", n.Name, err)
	}
	made, err := change(ctx, c, "create network "+n.Name, func() (json.RawMessage, error) {
		return c.calls.CreateNetwork(document)
	})
	if err != nil {
		return Network{}, err
	}
	return DecodeNetwork(made)
}

// DeleteNetwork deletes the network with this ID.
func (c *Client) DeleteNetwork(ctx context.Context, id string) error {
	return c.change(ctx, "delete network "+id, func() error { return c.calls.DeleteNetwork(id) })
}

// AddPolicies adds policies to the network with this ID, in one call.
func (c *Client) AddPolicies(ctx context.Context, id string, policies []Policy) error {
	return c.modify(ctx, id, "Add", policies)
}

// RemovePolicies removes policies from the network with this ID, in one call. Their settings must be byte for byte those
// that Network returned.
func (c *Client) RemovePolicies(ctx context.Context, id string, policies []Policy) error {
	return c.modify(ctx, id, "Remove", policies)
}

// modify adds or removes policies; request is "Add" or "Remove".
func (c *Client) modify(ctx context.Context, id, request string, policies []Policy) error {
	if len(policies) == 0 {
		return nil
	}
	document := encodeRequest(request, policies)
	what := fmt.Sprintf("modify network %s: %s %d policies", id, request, len(policies))
	return c.change(ctx, what, func() error { return c.calls.ModifyNetwork(id, document) })
}

// Endpoints returns the endpoints of the network with this ID. It reads each of them from HNS, and kube-proxy has one for
// each backend of a Service: with thousands, that takes seconds to hours. Prefer EndpointsNamed and Endpoint.
func (c *Client) Endpoints(ctx context.Context, network string) ([]Endpoint, error) {
	all, err := c.decodeEndpoints(ctx, network, "")
	return slices.DeleteFunc(all, func(e Endpoint) bool { return !strings.EqualFold(e.Network, network) }), err
}

// EndpointsNamed returns the endpoints with a name, which need not be unique, on all networks.
func (c *Client) EndpointsNamed(ctx context.Context, name string) ([]Endpoint, error) {
	all, err := c.decodeEndpoints(ctx, "", name)
	return slices.DeleteFunc(all, func(e Endpoint) bool { return e.Name != name }), err
}

// Endpoint returns the endpoint with this ID.
func (c *Client) Endpoint(ctx context.Context, id string) (Endpoint, error) {
	document, err := query(ctx, c, "read endpoint "+id, func() (json.RawMessage, error) { return c.calls.Endpoint(id) })
	if err != nil {
		return Endpoint{}, err
	}
	return DecodeEndpoint(document)
}

// decodeEndpoints returns the endpoints that HNS reports for the conditions of Calls.EndpointIDs, which it may ignore. It
// leaves out endpoints whose documents cannot be decoded, unless they have the name that is asked for.
func (c *Client) decodeEndpoints(ctx context.Context, network, name string) ([]Endpoint, error) {
	documents, err := c.endpoints(ctx, network, name)
	if err != nil {
		return nil, err
	}
	var all []Endpoint
	for _, document := range documents {
		e, err := DecodeEndpoint(document)
		_, found := identify(document)
		switch {
		case err == nil:
			all = append(all, e)
		case name != "" && found == name:
			return nil, err
		}
	}
	return all, nil
}

// endpoints reads the documents of endpoints; see each.
func (c *Client) endpoints(ctx context.Context, network, name string) (documents []json.RawMessage, err error) {
	ids, err := query(ctx, c, fmt.Sprintf("list endpoints (network %q, name %q)", network, name), func() ([]string, error) {
		return c.calls.EndpointIDs(network, name)
	})
	if err != nil {
		return nil, err
	}
	return c.each(ctx, "endpoint", ids, c.calls.Endpoint)
}

// each reads the documents of the objects with these IDs, one after the other. The timeout bounds each call, since the
// whole list has no limit. What is deleted meanwhile is left out. After an error it returns what it has read. what is a
// word for the error, such as "endpoint".
func (c *Client) each(ctx context.Context, what string, ids []string, read func(id string) (json.RawMessage, error)) (documents []json.RawMessage, err error) {
	for _, id := range ids {
		document, err := query(ctx, c, "read "+what+" "+id, func() (json.RawMessage, error) { return read(id) })
		switch {
		case err == nil:
			documents = append(documents, document)
		case !errors.Is(err, ErrNotFound):
			return documents, err
		}
	}
	return documents, nil
}

// CreateEndpoint creates an endpoint on e.Network and returns it as HNS created it.
func (c *Client) CreateEndpoint(ctx context.Context, e Endpoint) (Endpoint, error) {
	document := EncodeEndpoint(e)
	made, err := change(ctx, c, "create endpoint "+e.Name, func() (json.RawMessage, error) {
		return c.calls.CreateEndpoint(e.Network, document)
	})
	if err != nil {
		return Endpoint{}, err
	}
	return DecodeEndpoint(made)
}

// CreateEndpointV1 creates an endpoint with the name and the addresses of e on e.Network by the older API, and returns its
// ID.
func (c *Client) CreateEndpointV1(ctx context.Context, e Endpoint) (id string, err error) {
	return change(ctx, c, "create endpoint "+e.Name+" by the older API", func() (string, error) {
		return c.calls.CreateEndpointV1(e.Network, e.Name, e.IPs)
	})
}

// DeleteEndpoint deletes the endpoint with this ID.
func (c *Client) DeleteEndpoint(ctx context.Context, id string) error {
	return c.change(ctx, "delete endpoint "+id, func() error { return c.calls.DeleteEndpoint(id) })
}

// AttachHost attaches the endpoint with this ID to the host, which gets an adapter with the endpoint's addresses. If it
// is already attached, that is no error.
func (c *Client) AttachHost(ctx context.Context, id string) error {
	return c.change(ctx, "attach endpoint "+id, func() error { return c.calls.AttachHost(id) })
}
