package hns

import (
	"context"
	"net/netip"
)

// Networks returns all networks whose documents we can read, by whomever they were made. The management address of an
// L2Bridge is not in them; ask ManagementIP.
func (c *Client) Networks(ctx context.Context) ([]Network, error) {
	documents, err := query(ctx, c, "list networks", c.calls.Networks)
	if err != nil {
		return nil, err
	}
	var all []Network
	for _, document := range documents {
		if n, err := DecodeNetwork(document); err == nil {
			all = append(all, n)
		}
	}
	return all, nil
}

// ManagementIP asks for the host's address on a network, by its ID; zero while it is not there yet.
func (c *Client) ManagementIP(ctx context.Context, id string) (netip.Addr, error) {
	return query(ctx, c, "ask for the management address of network "+id, func() (netip.Addr, error) {
		return c.calls.ManagementIP(id)
	})
}
