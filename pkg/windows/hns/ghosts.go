package hns

import (
	"context"
	"slices"
	"strings"
)

// Ghosts returns the networks that only the older API (v1) lists, with ID, Name and Type. HNS refuses to create a
// network with the name of a ghost, and programs that use documents of v2, such as kube-proxy and the CNI plugins, do not
// find the ghost (calico#9120). HNS may also have ghosts that no list contains (hcsshim#850).
//
// The networks are listed before and after those of the older API, so that one that is created or deleted meanwhile is
// not taken for a ghost.
func (c *Client) Ghosts(ctx context.Context) ([]Network, error) {
	before, err := c.Networks(ctx)
	if err != nil {
		return nil, err
	}
	older, err := query(ctx, c, "list networks by the older API", c.calls.NetworksV1)
	if err != nil {
		return nil, err
	}
	after, err := c.Networks(ctx)
	if err != nil {
		return nil, err
	}
	for i := range older {
		older[i].Type = canonical(older[i].Type, Overlay, L2Bridge)
	}
	listed := append(before, after...)
	return slices.DeleteFunc(older, func(ghost Network) bool {
		return slices.ContainsFunc(listed, func(n Network) bool { return strings.EqualFold(n.ID, ghost.ID) })
	}), nil
}

// DeleteGhost deletes a network that Ghosts returned, by the older API.
func (c *Client) DeleteGhost(ctx context.Context, id string) error {
	return c.change(ctx, "delete network "+id+" by the older API", func() error { return c.calls.DeleteNetworkV1(id) })
}
