package kube

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

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// NodeStatus is what a Node says about its part of the pod network: a row of flanneld status --cluster, whose JSON document
// has these fields. Fields may be added, but none changes its meaning.
type NodeStatus struct {
	Name   string    `json:"name"`
	State  NodeState `json:"state"`
	Reason string    `json:"reason,omitempty"` // why it is not ready; absent: it is
	Since  time.Time `json:"since,omitzero"`   // since when the condition that State follows from has its value; absent: State follows from none

	OS        string         `json:"os,omitempty"` // linux, windows
	Backend   string         `json:"backend,omitempty"`
	Endpoints []nodeEndpoint `json:"endpoints,omitempty"` // one for each address family

	Daemon  string `json:"daemon,omitempty"`  // what runs on it, or did: flanneld, flannel; absent: not known
	Version string `json:"version,omitempty"` // of flanneld; absent: not known, or flannel
}

// nodeEndpoint is one address family of a Node's lease. Without a lease it has at most the subnet.
type nodeEndpoint struct {
	Subnet   netip.Prefix    `json:"subnet"`
	PublicIP netip.Addr      `json:"publicIP,omitzero"`
	Data     json.RawMessage `json:"backendData,omitempty"` // what the backend needs to reach the Node, as published
}

// NodeState is the state of a Node's part of the pod network. Its values are part of the format, too.
type NodeState string

const (
	// NodeReady means that the Node has a lease, and the condition of flanneld or flannel says that the network is up.
	NodeReady NodeState = "ready"
	// NodeNotReady means that the condition says that the network is not up.
	NodeNotReady NodeState = "not-ready"
	// NodeUnknown means that the Node has a lease, but nothing says whether its network is up now.
	NodeUnknown NodeState = "unknown"
	// NodeNoLease means that flanneld or flannel manages the Node, but other nodes cannot use what the Node publishes.
	NodeNoLease NodeState = "no-lease"
	// NodeUnmanaged means that neither flanneld nor flannel has published anything on the Node.
	NodeUnmanaged NodeState = "unmanaged"
)

// NodeStates are all states, in the order in which they are counted.
var NodeStates = []NodeState{NodeReady, NodeNotReady, NodeUnknown, NodeNoLease, NodeUnmanaged}

// maxRelists is how often Nodes lists again from the first page. A list has many pages, all of one revision of the
// cluster. If the list takes longer than the API server keeps that revision (five minutes), the next page is refused as
// expired.
const maxRelists = 3

// Nodes returns the state of the Nodes that match a label selector, sorted by name; "" selects all. flanneld status
// --cluster calls it, or asks the daemon to. It needs no other permission than to list Nodes. Of the options, those that
// say how to reach the API server and Prefix are used. perPage is the time limit for each page of the list.
func Nodes(ctx context.Context, o Options, selector string, perPage time.Duration) ([]NodeStatus, error) {
	api, err := newClient(o)
	if err != nil {
		return nil, err
	}
	defer api.Close()
	for try := 0; ; try++ {
		nodes, err := listStatus(ctx, api, o.Prefix, selector, perPage)
		switch {
		case err == nil:
			slices.SortFunc(nodes, func(a, b NodeStatus) int { return cmp.Compare(a.Name, b.Name) })
			return nodes, nil
		case apierrors.IsForbidden(err):
			return nil, fmt.Errorf("list Nodes: %w; the permission to list Nodes is enough: kubectl create clusterrole node-lister --verb=list --resource=nodes, and a clusterrolebinding", err)
		case !isExpired(err) || try == maxRelists:
			return nil, fmt.Errorf("list Nodes: %w", err)
		}
	}
}

// listStatus lists the Nodes once. A Node has some 15 KB, so only one page of whole Nodes is in memory at a time.
func listStatus(ctx context.Context, api *apiClient, prefix, selector string, perPage time.Duration) ([]NodeStatus, error) {
	var nodes []NodeStatus
	for next := ""; ; {
		asking, cancel := context.WithTimeout(ctx, perPage)
		page, err := api.NodePage(asking, selector, next)
		cancel()
		if err != nil {
			return nil, err
		}
		for i := range page.Items {
			nodes = append(nodes, nodeStatus(&page.Items[i], prefix))
		}
		if next = page.Continue; next == "" {
			return nodes, nil
		}
	}
}

// nodeStatus derives the state of a Node, whose annotations begin with prefix, from its annotations and conditions.
func nodeStatus(n *corev1.Node, prefix string) NodeStatus {
	s := NodeStatus{Name: n.Name, OS: n.Labels[corev1.LabelOSStable]}
	condition := conditionOf(n, corev1.NodeNetworkUnavailable)
	s.setDaemon(condition)
	node := nodeOf(n, prefix)
	lease, err := leaseOf(node) // as peers read it
	switch {
	case errors.Is(err, errNoPeer): // it has no annotations of flannel
		s.State, s.Reason = NodeUnmanaged, "no annotation "+prefix+annotationNames[managed]+"=true"
		if s.Daemon != "" { // the condition stays when the annotations are removed
			s.Reason += ", but the condition " + condition.Reason + ": " + s.Daemon + " was removed, or has another --kube-annotation-prefix"
		}
		return s
	case err != nil:
		s.State, s.Reason = NodeNoLease, err.Error()
		v4, v6, _ := subnetsOf(node.CIDRs) // if they are invalid, Reason says so
		for _, p := range []netip.Prefix{v4, v6} {
			if p.IsValid() {
				s.Endpoints = append(s.Endpoints, nodeEndpoint{Subnet: p})
			}
		}
		return s
	}
	s.Backend = lease.Backend
	for _, e := range lease.Endpoints() {
		s.Endpoints = append(s.Endpoints, nodeEndpoint(e))
	}
	s.setState(condition, conditionOf(n, corev1.NodeReady))
	return s
}

// setDaemon sets Daemon and Version by the condition NetworkUnavailable, whose reason says which daemon has written it
// (see report.go):
//
//	reason        version in the message   daemon
//	reasonUp      yes                      flanneld
//	reasonUp      no                       flannel, or a flanneld from before its message had the version
//	reasonNotUp   any                      flanneld
//	another       any                      not known: another program wrote it, such as a cloud's controller of routes
func (s *NodeStatus) setDaemon(c corev1.NodeCondition) {
	if c.Reason != reasonUp && c.Reason != reasonNotUp {
		return
	}
	s.Daemon = "flanneld"
	// cutVersion returns "" if the message has no version.
	if _, s.Version = cutVersion(c.Message); s.Version == "" && c.Reason == reasonUp {
		s.Daemon = "flannel"
	}
}

// setState sets State, Reason and Since of a Node with a lease from its conditions NetworkUnavailable (network) and
// Ready (kubelet). A condition that the Node does not have is zero. setDaemon must have been called.
func (s *NodeStatus) setState(network, kubelet corev1.NodeCondition) {
	s.Since = network.LastTransitionTime.Time
	message, _ := cutVersion(network.Message)
	message = strings.TrimSpace(message)
	switch {
	case kubelet.Status == corev1.ConditionUnknown:
		// The node is down or unreachable, and so is flanneld, which would change the network's condition.
		s.State, s.Reason = NodeUnknown, "kubelet does not report: "+kubelet.Message
		s.Since = kubelet.LastTransitionTime.Time
	case network.Status == corev1.ConditionTrue:
		s.State, s.Reason = NodeNotReady, message
		if s.Daemon == "" { // of another program: its reason tells which
			s.Reason = network.Reason + ": " + message
		}
	case network.Status == "":
		s.State, s.Reason = NodeUnknown, "no condition NetworkUnavailable"
	case network.Status != corev1.ConditionFalse: // Kubernetes' third status, Unknown
		s.State, s.Reason = NodeUnknown, fmt.Sprintf("the condition NetworkUnavailable is %s: %s: %s", network.Status, network.Reason, message)
	case s.Daemon == "":
		s.State, s.Reason = NodeUnknown, "the condition NetworkUnavailable is of another program: "+network.Reason
	default:
		s.State = NodeReady
	}
}

// conditionOf returns the Node's condition of a type; if there is none, the zero one, whose status is "".
func conditionOf(n *corev1.Node, kind corev1.NodeConditionType) corev1.NodeCondition {
	for _, c := range n.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return corev1.NodeCondition{}
}
