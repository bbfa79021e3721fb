package kube

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"flannel/subnet"
	"flannel/subnet/kube/format"
	"flannel/subnet/patience"
)

// claim is our own Node: what its annotations shall be, and what we last saw there. Manager.mu guards it.
//
//	state        cause                                    action                                            next state
//	acquired     Publish                                  write the annotations that differ                 publishing
//	publishing   the write fails                          retry with a pause                                publishing
//	publishing   the write succeeds, or none is needed    -                                                 settled
//	settled      Publish wants others                     write those that differ                           publishing
//	settled      someone else changed our annotations     restore them, now or after the conflict backoff   settled
//	any          an operator changed theirs               take them in, forget the conflict                 unchanged
//	any          the Node was deleted                     log it; the network stays as it is                missing
//	any          the Node was made anew, without podCIDR  log it; the network stays as it is                missing
//	missing      the Node has our podCIDR again           forget the conflict, write what differs           as before
//	any          the Node has another podCIDR             Hold returns ErrMoved                             moved
//
// acquired is a nil want; publishing and settled are the field settled; missing is a nil now, or one without podCIDRs, and
// stands beside these. While it lasts nothing is written.
type claim struct {
	v4, v6  netip.Prefix  // zero: the family is not ours
	want    *subnet.Lease // to be seen by the others; nil: nothing was described yet
	settled bool          // want stood there; if it does no more, another hand was at work
	now     *format.Node  // as last seen; nil: our Node is missing
	quarrel patience.Quarrel
	said    map[string]bool // problems with the operator's annotations
}

// Acquire waits for our Node and its podCIDRs; see subnet.Manager. It returns an error when these do not fit cfg.
func (m *Manager) Acquire(ctx context.Context, cfg subnet.Config, want subnet.Lease) (subnet.Lease, error) {
	m.mu.Lock()
	found := m.found
	m.found = nil
	m.mu.Unlock()
	if found == nil {
		var err error
		if found, err = m.readOwn(ctx); err != nil {
			return subnet.Lease{}, err
		}
	}
	name := found.Name
	c := &claim{now: found, said: map[string]bool{}}
	var err error
	if c.v4, c.v6, err = fit(name, found.CIDRs, cfg); err != nil {
		return subnet.Lease{}, err
	}
	if c.v4.IsValid() && c.v4 == cfg.V4.Prefix || c.v6.IsValid() && c.v6 == cfg.V6.Prefix {
		m.log.Warn("this node's podCIDR is the whole network: it works for this node alone", "cause", causeWholeNetwork, "podCIDR", c.text())
	}
	l := c.stored(name)
	if l.Backend != "" {
		c.want, c.settled = &l, true
	}
	m.mu.Lock()
	m.claim, m.holding = c, true
	m.mu.Unlock()
	if was, now := (claim{v4: want.V4.Subnet, v6: want.V6.Subnet}), (claim{v4: c.v4, v6: c.v6}); was.v4.IsValid() && was.v4 != c.v4 || was.v6.IsValid() && was.v6 != c.v6 {
		m.log.Warn("this node's subnet is another than before; pods that have addresses of the former one must be made anew", "cause", causeSubnetChanged, "was", was.text(), "is", now.text())
		m.teller.moved(was.text(), now.text())
	}
	m.teller.known()
	return l, nil
}

func (c *claim) text() string {
	var parts []string
	for _, p := range []netip.Prefix{c.v4, c.v6} {
		if p.IsValid() {
			parts = append(parts, p.String())
		}
	}
	return strings.Join(parts, ", ")
}

// findName returns the name of our Node, which a pod has to ask for.
func (m *Manager) findName(ctx context.Context) (string, error) {
	if name := m.ownName(); name != "" {
		return name, nil
	}
	var name string
	err := m.retry(ctx, "find this pod's node", func(ctx context.Context) (err error) {
		name, err = m.api.NodeOfPod(ctx, m.o.PodNamespace, m.o.PodName)
		return err
	})
	if err != nil {
		return "", err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.name = name
	return name, nil
}

func (m *Manager) ownName() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.name
}

// missing says what a node waits for, if anything. A podCIDR is set once and for both families: one that lacks a
// family will not get it.
func missing(name string, n *format.Node) string {
	switch {
	case n == nil:
		return fmt.Sprintf("there is no Node %s: the kubelet makes it when it starts", name)
	case len(n.CIDRs) == 0:
		return fmt.Sprintf("Node %s has no podCIDR: the kube-controller-manager assigns it, given --allocate-node-cidrs and --cluster-cidr", name)
	}
	return ""
}

// fit finds the subnets of the families in use. Their length is the cluster's choice, not that of the configuration.
func fit(name string, cidrs []string, cfg subnet.Config) (v4, v6 netip.Prefix, err error) {
	if v4, v6, err = format.Subnets(cidrs); err != nil {
		return netip.Prefix{}, netip.Prefix{}, fmt.Errorf("node %s: %w", name, err)
	}
	var problems []error
	for _, f := range []struct {
		family, key string
		network     subnet.Network
		s           *netip.Prefix
	}{{"IPv4", "Network", cfg.V4, &v4}, {"IPv6", "IPv6Network", cfg.V6, &v6}} {
		switch {
		case !f.network.On():
			*f.s = netip.Prefix{}
		case !f.s.IsValid():
			problems = append(problems, fmt.Errorf("node %s has no %s podCIDR (only %s), and the network configuration wants one: give the kube-controller-manager a --cluster-cidr of both families, or turn %s off",
				name, f.family, strings.Join(cidrs, ", "), f.family))
		case !f.network.Prefix.Contains(f.s.Addr()) || f.s.Bits() < f.network.Prefix.Bits():
			problems = append(problems, fmt.Errorf("podCIDR %s of node %s is not a part of %s %s in the network configuration: make this the kube-controller-manager's --cluster-cidr",
				f.s, name, f.key, f.network.Prefix))
		}
	}
	return v4, v6, errors.Join(problems...)
}

// stored is our lease as our Node has it, without a backend if it was not described or cannot be read.
func (c *claim) stored(name string) subnet.Lease {
	l := subnet.Lease{Name: name, Since: c.now.Created}
	if is, err := format.LeaseOf(c.now); err == nil {
		l.Backend = is.Backend
		l.V4, l.V6 = is.V4, is.V6
	}
	for _, f := range []struct {
		e *subnet.Endpoint
		s netip.Prefix
	}{{&l.V4, c.v4}, {&l.V6, c.v6}} {
		if f.s.IsValid() && !f.e.On() {
			l.Backend = "" // it is only half described
		}
		if f.e.Subnet = f.s; !f.s.IsValid() {
			*f.e = subnet.Endpoint{}
		}
	}
	return l
}

// Publish makes the others see l; see subnet.Manager.
func (m *Manager) Publish(ctx context.Context, l subnet.Lease) error {
	m.mu.Lock()
	if m.claim == nil || m.claim.v4 != l.V4.Subnet || m.claim.v6 != l.V6.Subnet {
		m.mu.Unlock()
		return fmt.Errorf("publish %v: this is not the subnet that was acquired", &l)
	}
	c := m.claim
	c.want, c.settled = &l, false
	m.mu.Unlock()
	return m.retry(ctx, "publish our lease", func(ctx context.Context) error { return m.settle(ctx, c) })
}

var errNoNode = errors.New("this node's Node is missing, or has no podCIDR")

// settle makes our annotations what they shall be, and writes only what differs.
func (m *Manager) settle(ctx context.Context, c *claim) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c != m.claim {
		return nil // there is another one by now
	}
	if c.now == nil || len(c.now.CIDRs) == 0 {
		return errNoNode // nothing is told of a Node before it is known whether it has our podCIDR
	}
	raw, _ := m.difference(c)
	if raw != nil {
		n, err := m.api.PatchStatus(ctx, m.name, raw)
		if err != nil {
			return fmt.Errorf("patch nodes/status %s: %w", m.name, err)
		}
		c.seePatched(n)
	}
	c.settled = true
	return nil
}

// difference is the patch that our Node needs, nil if none. m.mu must be held.
func (m *Manager) difference(c *claim) (raw []byte, changes []string) {
	if c.want == nil || c.now == nil {
		return nil, nil
	}
	want, problems := format.Describe(c.want, c.now.Notes)
	for _, p := range problems {
		if !c.said[p] {
			c.said[p] = true
			m.log.Warn(p, "cause", causeAnnotationIgnored)
		}
	}
	return format.Patch(m.o.Prefix, c.now.Notes, want)
}

// see takes in our Node, unless we know a newer state of it.
func (c *claim) see(n *format.Node) {
	if n == nil || c.now == nil || n.UID != c.now.UID || !older(n.Version, c.now.Version) {
		c.now = n
	}
}

// seePatched takes in what a patch of our Node made of it: an answer without spec.
func (c *claim) seePatched(n *format.Node) {
	if c.now != nil && c.now.UID == n.UID {
		n.CIDRs = c.now.CIDRs
		c.see(n)
	}
}

// patched is seePatched for those who have no claim at hand.
func (m *Manager) patched(n *format.Node) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.claim != nil {
		m.claim.seePatched(n)
	}
}

// ownNode returns what our Node is known by; both are "" while it is missing.
func (m *Manager) ownNode() (uid, version string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.claim == nil || m.claim.now == nil {
		return "", ""
	}
	return m.claim.now.UID, m.claim.now.Version
}
