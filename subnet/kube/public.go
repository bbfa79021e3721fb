package kube

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"flannel/pkg/reconcile"
	"flannel/subnet"
)

// PublicIPs implements subnet.Manager. The daemon's loop calls it, and joining does before Acquire. An operator sets
// the addresses in the annotations node-public-ip and node-public-ipv6 of our Node.
func (m *Manager) PublicIPs(ctx context.Context) (subnet.PublicIPs, error) {
	m.mu.Lock()
	if m.holding { // Hold keeps operatorIPs up to date
		defer m.mu.Unlock()
		m.returnedIPs = m.operatorIPs // Publish reads returnedIPs
		return m.returnedIPs, nil
	}
	m.mu.Unlock()
	found, err := m.readOwn(ctx)
	if err != nil {
		return subnet.PublicIPs{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.holding { // otherwise Hold has begun meanwhile
		m.found = found // for Acquire, which usually follows
		m.setOperatorIPs(found.Annotations)
	}
	m.returnedIPs = m.operatorIPs
	return m.returnedIPs, nil
}

// PublicIPsChanged implements subnet.Manager.
func (m *Manager) PublicIPsChanged() <-chan struct{} { return m.publicIPsChanged }

// useOperators puts the operator's annotations of our Node in force if they changed and the pause is over. There is a pause
// from the second change in two minutes on, because two controllers that disagree, or anyone who may edit the Node, would
// otherwise have each change logged, published and followed by a pass. useOperators returns after what time to call it
// again although the Node has not changed; 0: never. m.mu must be held.
func (m *Manager) useOperators(own *ownNode) (next time.Duration) {
	switch {
	case own.node == nil || len(own.node.CIDRs) == 0: // the network stays as it is
		return 0
	case own.node.Annotations.Operators() == m.operators:
		m.operatorChanges.Restored()
		return 0
	}
	due, _ := m.operatorChanges.Changed(time.Now(), rand.N)
	if wait := time.Until(due); wait > 0 {
		return wait
	}
	m.log.Info("operator changed annotations of this node", "node", own.node.Name)
	m.setOperatorIPs(own.node.Annotations)
	m.operatorChanges.Restored()
	own.conflict = subnet.Conflict{} // calm: what differs now is written at once
	return 0
}

// setOperatorIPs records the annotations that an operator has set, with the public addresses in them, and notifies if the
// addresses changed. m.mu must be held.
func (m *Manager) setOperatorIPs(n annotations) {
	m.operators = n.Operators()
	v4, problem4 := n.Operator(nodeIP, false) // false: an IPv4 address
	v6, problem6 := n.Operator(nodeIPv6, true)
	// Publish writes the addresses of these two (see subnet.PublicIPs). patchNeeded logs their problems.
	overwrite4, _ := n.Operator(overwrite, false)
	overwrite6, _ := n.Operator(overwriteV6, true)
	for _, p := range []string{problem4, problem6} {
		if p != "" && m.warned.add(p) {
			m.log.Warn(p, "cause", causeAnnotationIgnored)
		}
	}
	if ips := (subnet.PublicIPs{V4: v4, V6: v6, Overwritten4: overwrite4.IsValid(), Overwritten6: overwrite6.IsValid()}); ips != m.operatorIPs {
		m.operatorIPs = ips
		reconcile.Notify(m.publicIPsChanged)
	}
}

// warned are texts that were logged. It forgets all of them when there are too many: they quote annotations, which others
// write. The zero warned is empty.
type warned map[string]bool

// maxWarned bounds the warnings that are remembered.
const maxWarned = 100

// add adds a text, and reports whether it is a new one.
func (w *warned) add(text string) (isNew bool) {
	if (*w)[text] {
		return false
	}
	if *w == nil || len(*w) >= maxWarned {
		*w = warned{}
	}
	(*w)[text] = true
	return true
}

// readOwn waits until our Node exists and has a podCIDR, and returns it. The error is that of the end of ctx, or of a request
// for our pod that the API server rejects as invalid; follow and retry go on after all others. PublicIPs and Acquire call it
// on their goroutine, one after the other.
func (m *Manager) readOwn(ctx context.Context) (found *storedNode, err error) {
	name, err := m.findName(ctx)
	if err != nil {
		return nil, err
	}
	logged := "" // the reason in the log
	err = m.follow(ctx, feed{activity: "read this node's Node", only: name, handle: func(_ context.Context, changes []change) error {
		var cause, reason string
		switch found = changes[len(changes)-1].node; { // all changes are of our Node
		case found == nil: // deleted, or, at the first list, never created
			cause, reason = causeNoNode, fmt.Sprintf("Node %s does not exist: its kubelet creates it when it starts", name)
		case len(found.CIDRs) == 0:
			cause, reason = causeNoPodCIDR, fmt.Sprintf("Node %s has no podCIDR: kube-controller-manager assigns one "+
				"if started with --allocate-node-cidrs and --cluster-cidr", name)
		default: // the podCIDRs of all families are set together and never change: waiting for a second family is useless
			return errDone // ends follow, which returns nil
		}
		m.tellWaiting("waiting for this node's podCIDR", cause, reason, &logged)
		return nil
	}})
	return found, errors.Join(err, ctx.Err()) // follow returns nil at the end of ctx, too: found may be incomplete then
}

// findName returns the name of our Node. If the options do not name it, it waits until the API says on which Node our pod
// runs.
func (m *Manager) findName(ctx context.Context) (string, error) {
	if name := m.ownName(); name != "" {
		return name, nil
	}
	var name string
	logged := ""
	err := m.retry(ctx, "find the node of this pod", func(ctx context.Context) (err error) {
		name, err = m.api.NodeOfPod(ctx, m.o.PodNamespace, m.o.PodName)
		if errors.Is(err, errNoPod) {
			m.tellWaiting("waiting for this node's name", causeNoPod, err.Error(), &logged)
		}
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

// tellWaiting tells the caller of PublicIPs or Acquire, and the cluster, what they wait for (activity) and why. It logs the
// reason, too, if logged is another one, and updates logged.
func (m *Manager) tellWaiting(activity, cause, reason string, logged *string) {
	m.o.Waiting(activity + ": " + reason)
	m.reporter.waiting(activity + ": " + reason)
	if reason != *logged {
		m.log.Warn(activity, "cause", cause, "reason", reason)
		*logged = reason
	}
}
