package kube

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"flannel/pkg/reconcile"
	"flannel/subnet"
)

// ownNode is this node's Node in the API: the annotations that it should have, and the state in which we last saw it.
// Manager.mu guards it. The daemon calls PublicIPs, then Acquire, which makes a new ownNode, and then Publish and Hold,
// which use the ownNode beside each other. Of the annotations of type annotation (node.go), an operator sets those that
// annotations.Operators returns, such as the overwrites of a public IP, and we only read them. The others are ours.
//
// In the table, "the conflict" is with somebody who changes our annotations again and again, and "the pause" is that of
// subnet.Conflict: none before the first restoration, then 1 to 10 s. The conflict is over after two minutes without a
// change, or when the table says so.
//
//	state        cause                                    action                                            next state
//	acquired     Publish                                  write the annotations that differ                 publishing
//	publishing   the write fails                          retry after a pause                               publishing
//	publishing   the write succeeds, or none is needed    -                                                 published
//	published    Publish with another lease               write the annotations that differ                 publishing
//	published    the API server rejects the restoration   try again after the next change, and a pause      published
//	published    someone else changed our annotations     restore them, now or after the pause              published
//	any          an operator changed their annotations    use their values (useOperators), end the conflict unchanged
//	any          an operator overwrites a public IP       use it with the next Publish                      unchanged
//	any          the Node was deleted                     log it, keep the network as it is                 missing
//	any          the Node was recreated without podCIDR   log it, keep the network as it is                 missing
//	missing      the Node has our podCIDR again           end the conflict, write what differs              as before
//	any          the store was replaced                   end the conflict, write what differs              unchanged
//	any          the Node has another podCIDR             Hold returns ErrMoved                             moved
//
// In acquired, want is nil; publishing and published differ in the field published. Acquire enters acquired, or
// published if an earlier run has published a lease. In missing, node is nil or has no podCIDRs; this is independent of
// the other states, and nothing is written while it lasts.
type ownNode struct {
	v4, v6    netip.Prefix  // the subnets that Acquire returned; zero: the family is off
	want      *subnet.Lease // the lease that the annotations should describe; nil: nothing was published yet
	published bool          // the annotations matched want once: a difference means that someone else changed them
	node      *storedNode   // as last seen; nil: the Node does not exist
	// overwritten says of each family (IPv4, IPv6) whether an operator overwrote its public IP when PublicIPs was called
	// last before Publish. With an overwrite, peers read another address of this node than the one that it sends from, and
	// their guard (pkg/linux/guard) drops packets from an address that they do not know. So the caller of Publish has put
	// the address that this node sends from into the Data of want, and one patch writes both. A later overwrite has no
	// effect before the next Publish.
	overwritten [2]bool
	conflict    subnet.Conflict // paces how often we restore the annotations
	warned      warned          // the problems with the operator's annotations that were logged
}

// overwrites are the annotations by which an operator overwrites the public IPs: of IPv4 and IPv6, as in overwritten.
var overwrites = [2]annotation{overwrite, overwriteV6}

// Acquire implements subnet.Manager. It waits until our Node exists and has a podCIDR. It returns an error when the
// podCIDRs are not in the networks of cfg: the daemon reports it, and calls Acquire again. want has the subnets of the run
// before, from the subnet file; they are only compared with the new ones.
func (m *Manager) Acquire(ctx context.Context, cfg subnet.Config, want subnet.Lease) (subnet.Lease, error) {
	m.mu.Lock()
	found := m.found // as PublicIPs has just read it with readOwn
	m.found = nil    // it would be too old for another Acquire
	m.mu.Unlock()
	if found == nil {
		var err error
		if found, err = m.readOwn(ctx); err != nil {
			return subnet.Lease{}, err
		}
	}
	own := &ownNode{node: found} // not shared yet, so that no lock is needed
	var err error
	if own.v4, own.v6, err = subnetsIn(found.Name, found.CIDRs, cfg); err != nil { // readOwn has waited for a podCIDR
		return subnet.Lease{}, err
	}
	// A cluster of one node can have this.
	if own.v4.IsValid() && own.v4 == cfg.V4.Prefix || own.v6.IsValid() && own.v6 == cfg.V6.Prefix {
		m.log.Warn("podCIDR of this node is the whole network, which leaves no subnet for other nodes",
			"cause", causeWholeNetwork, "podCIDR", own.subnets())
	}
	l, complete := own.storedLease()
	if complete { // the annotations are of a run before this one: Hold keeps them until Publish
		own.want, own.published = &l, true
	}
	m.mu.Lock()
	m.own = own
	m.mu.Unlock()
	before := ownNode{v4: want.V4.Subnet, v6: want.V6.Subnet} // for its method subnets
	if before.v4.IsValid() && before.v4 != own.v4 || before.v6.IsValid() && before.v6 != own.v6 {
		m.log.Warn("subnet of this node changed; pods with an address of the former subnet must be recreated",
			"cause", causeSubnetChanged, "was", before.subnets(), "is", own.subnets())
		m.reporter.subnetChanged(before.subnets(), own.subnets())
	}
	m.reporter.nodeChanged() // the reporter (report.go) must look whether this Node has our condition
	return l, nil
}

// subnets formats the subnets for a message.
func (own *ownNode) subnets() string {
	var parts []string
	for _, p := range []netip.Prefix{own.v4, own.v6} {
		if p.IsValid() {
			parts = append(parts, p.String())
		}
	}
	return strings.Join(parts, ", ")
}

// ownName returns the name of our Node, or "" if it is not known yet.
func (m *Manager) ownName() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.name
}

// NodeName implements subnet.Manager.
func (m *Manager) NodeName() string { return m.ownName() }

// subnetsIn returns the subnets of the families that cfg enables, from the podCIDRs of the Node called name, and an
// error if one is missing or is not in the network of cfg. The cluster chooses their length: cfg's SubnetLen is not
// used.
func subnetsIn(name string, cidrs []string, cfg subnet.Config) (v4, v6 netip.Prefix, err error) {
	if v4, v6, err = subnetsOf(cidrs); err != nil {
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
			*f.s = netip.Prefix{} // the Node may have a podCIDR of a family that cfg disables
		case !f.s.IsValid():
			problems = append(problems, fmt.Errorf("node %s has no %s podCIDR (only %s), but the network configuration enables %s: "+
				"start kube-controller-manager with a --cluster-cidr of both families, then drain this Node, delete it and "+
				"restart its kubelet, since podCIDRs of a Node never change; or disable %s",
				name, f.family, strings.Join(cidrs, ", "), f.family, f.family))
		case !f.network.Prefix.Contains(f.s.Addr()) || f.s.Bits() < f.network.Prefix.Bits():
			problems = append(problems, fmt.Errorf("podCIDR %s of node %s is not in %s %s of the network configuration: "+
				"use that network as --cluster-cidr of kube-controller-manager", f.s, name, f.key, f.network.Prefix))
		}
	}
	return v4, v6, errors.Join(problems...)
}

// storedLease returns the lease that our Node's annotations describe, with our subnets. It is not complete if the
// annotations describe none, cannot be read, or lack one of our families. It then has our subnets and what could be read
// beside them.
func (own *ownNode) storedLease() (l subnet.Lease, complete bool) {
	l = subnet.Lease{Name: own.node.Name, Since: own.node.Created}
	if described, err := leaseOf(own.node); err == nil {
		l, complete = *described, true
	}
	for _, f := range []struct {
		e *subnet.Endpoint
		s netip.Prefix
	}{{&l.V4, own.v4}, {&l.V6, own.v6}} {
		switch {
		case !f.s.IsValid(): // we do not use the family, even if annotations describe it
			*f.e = subnet.Endpoint{}
		case !f.e.On(): // no annotation has the family's address
			f.e.Subnet, complete = f.s, false
		}
	}
	return l, complete
}

// Publish implements subnet.Manager. It sets what the annotations should be, and writes those that differ. While the
// Node is missing, it waits and tries again. The daemon's publisher calls it, on a goroutine of its own, beside Hold.
func (m *Manager) Publish(ctx context.Context, l subnet.Lease) error {
	m.mu.Lock()
	if m.own == nil || m.own.v4 != l.V4.Subnet || m.own.v6 != l.V6.Subnet {
		m.mu.Unlock()
		return fmt.Errorf("publish %v: another subnet than Acquire returned", &l)
	}
	own := m.own
	own.want, own.published = &l, false
	own.overwritten = [2]bool{m.returnedIPs.Overwritten4, m.returnedIPs.Overwritten6}
	m.mu.Unlock()
	// An error is the end of ctx, or a patch that the API server rejects as invalid.
	return m.retry(ctx, "publish our lease", func(ctx context.Context) error { return m.writeAnnotations(ctx, own) })
}

// errNoNode means that there is nothing to write to, for now. Manager.retry tries again.
var errNoNode = errors.New("this node's Node does not exist, or has no podCIDR")

// writeAnnotations writes those of our annotations that differ from own.want, one call at a time: the patch of an earlier
// want must not arrive last. m.mu is not held during the request. What others change meanwhile is restored afterwards.
// Publish calls it, and the restorer of Hold (restoreIfDue).
func (m *Manager) writeAnnotations(ctx context.Context, own *ownNode) error {
	select {
	case m.writing <- struct{}{}:
		defer func() { <-m.writing }()
	case <-ctx.Done():
		return ctx.Err()
	}
	m.mu.Lock()
	if own != m.own {
		m.mu.Unlock()
		return nil // Acquire was called again
	}
	if own.node == nil || len(own.node.CIDRs) == 0 {
		m.mu.Unlock()
		return errNoNode // a recreated Node may get another podCIDR, which our annotations would not describe
	}
	name, want := own.node.Name, own.want
	raw, _ := m.patchNeeded(own) // the names of what differs are for the log of restoreIfDue
	m.mu.Unlock()
	var patched *storedNode
	if raw != nil {
		var err error
		if patched, err = m.api.PatchStatus(ctx, name, raw); err != nil {
			return fmt.Errorf("patch nodes/status %s: %w", name, err)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if patched != nil {
		own.observePatched(patched)
		own.conflict.Restored() // after a Publish without a conflict, this has no effect
	}
	if own.want == want { // the pointer; else Publish has set another one, and calls us again
		own.published = true
		reconcile.Notify(m.restore) // someone may have changed the annotations since we made the patch
	}
	return nil
}

// patchNeeded returns the patch that makes our Node's annotations describe own.want, and the names of the annotations
// that it changes; nil: they do, or there is no Node or no want yet. It logs what is wrong with the operator's
// annotations. m.mu must be held.
func (m *Manager) patchNeeded(own *ownNode) (raw []byte, changes []string) {
	if own.want == nil || own.node == nil {
		return nil, nil
	}
	operators := own.node.Annotations           // a copy, since Annotations is an array
	copy(operators[overwrite:], m.operators[:]) // those in force, which describeLease keeps
	for i, name := range overwrites {
		// An overwrite that the caller of Publish did not know has no effect yet. describeLease reports an invalid one. The
		// second argument: the address is to be IPv6.
		if a, _ := operators.Operator(name, name == overwriteV6); a.IsValid() && !own.overwritten[i] {
			operators[name] = ""
		}
	}
	want, problems := describeLease(own.want, operators)
	copy(want[overwrite:], own.node.Annotations[overwrite:]) // the patch must not change the operator's
	for _, p := range problems {
		if own.warned.add(p) {
			m.log.Warn(p, "cause", causeAnnotationIgnored)
		}
	}
	return patchOf(m.o.Prefix, own.node.Annotations, want)
}

// observe records the state of our Node, unless a newer one is recorded. Watch events and the answers to our own patches
// arrive in any order.
func (own *ownNode) observe(n *storedNode) {
	if n == nil || own.node == nil || n.UID != own.node.UID || !older(n.Version, own.node.Version) {
		own.node = n
	}
}

// observePatched records the answer to a patch of our Node. PatchStatus asks for the metadata alone, so the podCIDRs are
// those seen before. An answer about a Node that was recreated since is ignored. Manager.mu must be held, also for observe.
func (own *ownNode) observePatched(n *storedNode) {
	if own.node != nil && own.node.UID == n.UID {
		n.CIDRs = own.node.CIDRs
		own.observe(n)
	}
}

// observePatched records the answer to a patch of our Node by the reporter.
func (m *Manager) observePatched(n *storedNode) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.own != nil {
		m.own.observePatched(n)
	}
}

// ownUID returns the UID and the resourceVersion of our Node, both "" while it does not exist, for the reporter.
func (m *Manager) ownUID() (uid, version string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.own == nil || m.own.node == nil {
		return "", ""
	}
	return m.own.node.UID, m.own.node.Version
}
