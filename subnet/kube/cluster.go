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

	"flannel/subnet/kube/client"
	"flannel/subnet/kube/format"
)

// NodeStatus is what a Node says about its part of the pod network. Its fields are part of the format of flanneld status
// --cluster: fields may be added, but none changes its meaning.
type NodeStatus struct {
	Name   string    `json:"name"`
	State  NodeState `json:"state"`
	Reason string    `json:"reason,omitempty"` // unless it is ready
	Since  time.Time `json:"since,omitzero"`   // when the condition got its value that State is from

	OS        string         `json:"os,omitempty"` // linux, windows
	Backend   string         `json:"backend,omitempty"`
	Endpoints []NodeEndpoint `json:"endpoints,omitempty"` // one for each address family

	Daemon  string `json:"daemon,omitempty"`  // flanneld, flannel; absent: not known
	Version string `json:"version,omitempty"` // of flanneld
}

// NodeEndpoint is one address family of a Node's lease. Without a lease it has at most the subnet.
type NodeEndpoint struct {
	Subnet   netip.Prefix    `json:"subnet"`
	PublicIP netip.Addr      `json:"publicIP,omitzero"`
	Data     json.RawMessage `json:"backendData,omitempty"`
}

// NodeState is the state of a Node's part of the pod network. Its values are printed as they are.
type NodeState string

const (
	// NodeReady means that the Node has a lease, and the condition of flanneld or flannel says that the network is up.
	NodeReady NodeState = "ready"
	// NodeNotReady means that the condition says that the network is not up.
	NodeNotReady NodeState = "not-ready"
	// NodeUnknown means that the Node has a lease, but nothing says whether its network is up now.
	NodeUnknown NodeState = "unknown"
	// NodeNoLease means that flanneld or flannel manages the Node, but other nodes cannot use what it publishes.
	NodeNoLease NodeState = "no-lease"
	// NodeUnmanaged means that neither flanneld nor flannel has published anything on the Node.
	NodeUnmanaged NodeState = "unmanaged"
)

// NodeStates are all states, in the order in which they are counted.
var NodeStates = []NodeState{NodeReady, NodeNotReady, NodeUnknown, NodeNoLease, NodeUnmanaged}

// maxRelists is how often a list begins anew that took so long that the API server forgot its revision.
const maxRelists = 3

// Nodes returns the state of the Nodes that match a label selector, sorted by name; "" selects all. It needs no other
// permission than to list Nodes. Of the options, those that say how to reach the API server and Prefix are used. perPage
// is the time limit for each page of the list.
func Nodes(ctx context.Context, o Options, selector string, perPage time.Duration) ([]NodeStatus, error) {
	api, err := client.New(o.client())
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
		case !client.IsExpired(err) || try == maxRelists:
			return nil, fmt.Errorf("list Nodes: %w", err)
		}
	}
}

// listStatus lists the Nodes once. It keeps no more than one page of whole Nodes, which have some 15 KB each.
func listStatus(ctx context.Context, api *client.Client, prefix, selector string, perPage time.Duration) ([]NodeStatus, error) {
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

// nodeStatus derives the state of a Node.
func nodeStatus(n *corev1.Node, prefix string) NodeStatus {
	s := NodeStatus{Name: n.Name, OS: n.Labels[corev1.LabelOSStable]}
	condition := conditionOf(n, corev1.NodeNetworkUnavailable)
	s.setDaemon(condition)
	node := format.Of(n, prefix)
	lease, err := format.LeaseOf(node)
	switch {
	case errors.Is(err, format.ErrNoPeer):
		s.State, s.Reason = NodeUnmanaged, "no annotation "+prefix+format.AnnotationNames[format.Managed]+"=true"
		if s.Daemon != "" { // the condition is not removed with the annotations
			s.Reason += ", but the condition " + condition.Reason + ": " + s.Daemon + " was removed, or has another --kube-annotation-prefix"
		}
		return s
	case err != nil:
		s.State, s.Reason = NodeNoLease, err.Error()
		v4, v6, _ := format.Subnets(node.CIDRs) // that they are invalid is the reason then
		for _, p := range []netip.Prefix{v4, v6} {
			if p.IsValid() {
				s.Endpoints = append(s.Endpoints, NodeEndpoint{Subnet: p})
			}
		}
		return s
	}
	s.Backend = lease.Backend
	for _, e := range lease.Endpoints() {
		s.Endpoints = append(s.Endpoints, NodeEndpoint(e))
	}
	s.setState(condition, conditionOf(n, corev1.NodeReady))
	return s
}

// setDaemon sets which daemon has written the condition NetworkUnavailable, if it is known. flannel has flanneld's reason,
// and so had flanneld before its message named the version.
func (s *NodeStatus) setDaemon(c corev1.NodeCondition) {
	if c.Reason != reasonUp && c.Reason != reasonNotUp {
		return // of another program, such as a cloud's controller of routes
	}
	s.Daemon = "flanneld"
	if _, s.Version = cutVersion(c.Message); s.Version == "" && c.Reason == reasonUp {
		s.Daemon = "flannel"
	}
}

// setState sets the state of a Node with a lease from its conditions NetworkUnavailable and Ready.
func (s *NodeStatus) setState(network, kubelet corev1.NodeCondition) {
	s.Since = network.LastTransitionTime.Time
	message, _ := cutVersion(network.Message)
	message = strings.TrimSpace(message)
	switch {
	case kubelet.Status == corev1.ConditionUnknown:
		// The node is down or unreachable, and so is its daemon: its condition stays as it was.
		s.State, s.Reason = NodeUnknown, "kubelet does not report: "+kubelet.Message
		s.Since = kubelet.LastTransitionTime.Time
	case network.Status == corev1.ConditionTrue:
		s.State, s.Reason = NodeNotReady, message
		if s.Daemon == "" {
			s.Reason = network.Reason + ": " + message
		}
	case network.Status != corev1.ConditionFalse:
		s.State, s.Reason = NodeUnknown, "no condition NetworkUnavailable"
	case s.Daemon == "":
		s.State, s.Reason = NodeUnknown, "the condition NetworkUnavailable is of another program: "+network.Reason
	default:
		s.State = NodeReady
	}
}

// conditionOf returns a condition of a Node, the zero one if it has none of this type.
func conditionOf(n *corev1.Node, kind corev1.NodeConditionType) corev1.NodeCondition {
	for _, c := range n.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return corev1.NodeCondition{}
}
