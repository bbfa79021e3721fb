package hns

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
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

// withManagementIP asks for what documents of an L2Bridge do not tell.
func (c *Client) withManagementIP(ctx context.Context, n Network) (Network, error) {
	if n.Type != L2Bridge || n.ManagementIP.IsValid() {
		return n, nil
	}
	ip, err := query(ctx, c, "ask for the management address of network "+n.Name, func() (netip.Addr, error) {
		return c.calls.ManagementIP(n.ID)
	})
	n.ManagementIP = ip
	return n, err
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
		all = append(all, e)
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

// Changes tells that networks, or HNS itself, may have come or gone: the channel receives one value for any number of
// changes; it is never closed. Where HNS does not tell, it receives one whenever Timing.Poll has passed.
func (c *Client) Changes(ctx context.Context) <-chan struct{} {
	told := make(chan struct{}, 1)
	go c.listen(ctx, func() {
		select {
		case told <- struct{}{}:
		default:
		}
	})
	return told
}

// listen ends with ctx.
func (c *Client) listen(ctx context.Context, tell func()) {
	for {
		stop, err := run(ctx, c, "ask HNS to tell of changes", c.timing.Query,
			func() (func(), error) { return c.calls.Notify(tell) }, func(stop func()) { stop() })
		if err == nil {
			tell() // what changed before we listened
			context.AfterFunc(ctx, stop)
			return
		}
		for again := !errors.Is(err, ErrUnsupported); ; {
			select {
			case <-ctx.Done():
				return
			case <-time.After(c.timing.Poll):
			}
			tell()
			if again {
				break
			}
		}
	}
}
