package hns

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Timing bounds what a Client waits for; a zero field takes the default.
type Timing struct {
	Query  time.Duration // a call that reads: 10 s
	Change time.Duration // one that creates, modifies or deletes: 60 s
	Poll   time.Duration // between looks at an HNS that does not tell of changes: 10 s
}

// Client calls HNS without ever waiting longer for it than Timing and the context say.
type Client struct {
	calls  Calls
	timing Timing

	mu   sync.Mutex
	hung map[*pending]bool // calls that nobody waits for any more

	made, changed atomic.Uint64
}

// NewClient makes one. All use of calls must go through it.
func NewClient(calls Calls, t Timing) *Client {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{{&t.Query, 10 * time.Second}, {&t.Change, time.Minute}, {&t.Poll, 10 * time.Second}} {
		if *d.field <= 0 {
			*d.field = d.value
		}
	}
	return &Client{calls: calls, timing: t, hung: map[*pending]bool{}}
}

// Counts tells how many calls were made, and how many of them were to change something.
func (c *Client) Counts() (calls, changes uint64) { return c.made.Load(), c.changed.Load() }

// Features asks for the version, and says what comes with it.
func (c *Client) Features(ctx context.Context) (Version, Features, error) {
	v, err := query(ctx, c, "ask HNS for its version", c.calls.Version)
	return v, v.Features(), err
}

// Networks returns all networks, by whomever they were made; of those whose documents we cannot read ID, name and
// Unread. The management address of an L2Bridge is not in them; ask ManagementIP.
func (c *Client) Networks(ctx context.Context) ([]Network, error) {
	documents, err := query(ctx, c, "list networks", c.calls.Networks)
	if err != nil {
		return nil, err
	}
	var all []Network
	for _, document := range documents {
		n, err := DecodeNetwork(document)
		if err != nil {
			n = Network{ID: idOf(document), Name: nameOf(document), Unread: err}
		}
		all = append(all, n)
	}
	return all, nil
}

// Network finds a network by its name, ErrNotFound if there is none. Of several with one name (HNS does not mind) it is
// the first.
func (c *Client) Network(ctx context.Context, name string) (Network, error) {
	all, err := query(ctx, c, "list networks", c.calls.Networks)
	if err != nil {
		return Network{}, err
	}
	for _, document := range all {
		// Others' networks may be of kinds that we do not understand.
		if nameOf(document) != name {
			continue
		}
		n, err := DecodeNetwork(document)
		if err != nil {
			return Network{}, fmt.Errorf("network %s: %w", name, err)
		}
		return c.withManagementIP(ctx, n)
	}
	return Network{}, fmt.Errorf("network %s: %w", name, ErrNotFound)
}

// Documents returns what HNS says of all networks, and of the endpoints of each, as it says it.
func (c *Client) Documents(ctx context.Context) (networks, endpoints []json.RawMessage, err error) {
	if networks, err = query(ctx, c, "list networks", c.calls.Networks); err != nil {
		return nil, nil, err
	}
	for _, document := range networks {
		id := idOf(document)
		if id == "" {
			continue
		}
		of, err := query(ctx, c, "list endpoints of network "+id, func() ([]json.RawMessage, error) { return c.calls.Endpoints(id) })
		if err != nil {
			return networks, endpoints, err
		}
		endpoints = append(endpoints, of...)
	}
	return networks, endpoints, nil
}

// withManagementIP asks for what documents of an L2Bridge do not tell.
func (c *Client) withManagementIP(ctx context.Context, n Network) (Network, error) {
	if n.Type != L2Bridge || n.ManagementIP.IsValid() {
		return n, nil
	}
	ip, err := c.ManagementIP(ctx, n.ID)
	n.ManagementIP = ip
	return n, err
}

// ManagementIP asks for the host's address on a network, by its ID; zero while it is not there yet.
func (c *Client) ManagementIP(ctx context.Context, id string) (netip.Addr, error) {
	return query(ctx, c, "ask for the management address of network "+id, func() (netip.Addr, error) {
		return c.calls.ManagementIP(id)
	})
}

// CreateNetwork returns it as HNS made it. The call may bind the adapter to a virtual switch, so that the host loses
// its addresses for a while; addresses and policies may follow later.
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

// DeleteNetwork takes a network's ID.
func (c *Client) DeleteNetwork(ctx context.Context, id string) error {
	return c.change(ctx, "delete network "+id, func() error { return c.calls.DeleteNetwork(id) })
}

// AddPolicies adds all to a network, by its ID, in one call.
func (c *Client) AddPolicies(ctx context.Context, id string, policies []Policy) error {
	return c.modify(ctx, id, "Add", policies)
}

// RemovePolicies removes all from a network, by its ID, in one call. Their settings must be those that Network told.
func (c *Client) RemovePolicies(ctx context.Context, id string, policies []Policy) error {
	return c.modify(ctx, id, "Remove", policies)
}

func (c *Client) modify(ctx context.Context, id, request string, policies []Policy) error {
	if len(policies) == 0 {
		return nil
	}
	document := encodeRequest(request, policies)
	what := fmt.Sprintf("modify network %s: %s %d policies", id, request, len(policies))
	return c.change(ctx, what, func() error { return c.calls.ModifyNetwork(id, document) })
}

// Endpoints returns all of a network, given by its ID.
func (c *Client) Endpoints(ctx context.Context, network string) ([]Endpoint, error) {
	documents, err := query(ctx, c, "list endpoints of network "+network, func() ([]json.RawMessage, error) {
		return c.calls.Endpoints(network)
	})
	if err != nil {
		return nil, err
	}
	var all []Endpoint
	for _, document := range documents {
		e, err := DecodeEndpoint(document)
		if err != nil {
			return nil, fmt.Errorf("endpoints of network %s: %w", network, err)
		}
		if strings.EqualFold(e.Network, network) { // HNS may know of no such filter
			all = append(all, e)
		}
	}
	return all, nil
}

// CreateEndpoint makes one on the network that it names, and returns it as HNS made it.
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

// DeleteEndpoint takes an endpoint's ID.
func (c *Client) DeleteEndpoint(ctx context.Context, id string) error {
	return c.change(ctx, "delete endpoint "+id, func() error { return c.calls.DeleteEndpoint(id) })
}

// AttachHost gives an endpoint, by its ID, to the host: an adapter with its addresses appears. One that has been given
// to it already is no error.
func (c *Client) AttachHost(ctx context.Context, id string) error {
	return c.change(ctx, "attach endpoint "+id, func() error { return c.calls.AttachHost(id) })
}
