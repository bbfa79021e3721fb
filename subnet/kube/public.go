package kube

import (
	"context"
	"errors"

	"flannel/subnet"
	"flannel/subnet/kube/format"
)

// PublicIPs implements subnet.Addresser by the annotations node-public-ip and node-public-ipv6 of our Node.
func (m *Manager) PublicIPs(ctx context.Context) (subnet.PublicIPs, error) {
	m.mu.Lock()
	holding, known := m.holding, m.operator
	m.mu.Unlock()
	if holding {
		return known, nil
	}
	found, err := m.readOwn(ctx)
	if err != nil {
		return subnet.PublicIPs{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.found = found
	m.obey(found.Notes)
	return m.operator, nil
}

// PublicIPsChanged implements subnet.Addresser.
func (m *Manager) PublicIPsChanged() <-chan struct{} { return m.addressed }

// obey takes in what an operator says of our public addresses. m.mu must be held.
func (m *Manager) obey(n format.Notes) {
	v4, problem4 := n.Operator(format.NodeIP, false)
	v6, problem6 := n.Operator(format.NodeIPv6, true)
	for _, p := range []string{problem4, problem6} {
		if p != "" && !m.warned[p] {
			m.warned[p] = true
			m.log.Warn(p, "cause", causeAnnotationIgnored)
		}
	}
	if now := (subnet.PublicIPs{V4: v4, V6: v6}); now != m.operator {
		m.operator = now
		token(m.addressed)
	}
}

// readOwn waits for our Node and its podCIDRs.
func (m *Manager) readOwn(ctx context.Context) (found *format.Node, err error) {
	name, err := m.findName(ctx)
	if err != nil {
		return nil, err
	}
	said := ""
	err = m.follow(ctx, feed{activity: "read this node's Node", only: name, to: func(_ context.Context, changes []change) error {
		found = changes[len(changes)-1].node
		reason := missing(name, found)
		if reason == "" {
			return errDone
		}
		if m.o.Waiting("waiting for this node's podCIDR: " + reason); reason != said {
			cause := causeNoPodCIDR
			if found == nil {
				cause = causeNoNode
			}
			m.log.Warn("waiting for this node's podCIDR", "cause", cause, "reason", reason)
			said = reason
		}
		return nil
	}})
	return found, errors.Join(err, ctx.Err())
}
