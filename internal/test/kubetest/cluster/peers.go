package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Peer is a node that exists only in the API server, with a podCIDR that is chosen by the
// caller.
type Peer struct {
	Name        string
	PodCIDR     netip.Prefix
	Annotations map[string]string
}

// AddPeers creates count Nodes, 20 at a time. peer is called in several goroutines.
func (c *Cluster) AddPeers(ctx context.Context, count int, peer func(i int) Peer) error {
	tasks, ctx := errgroup.WithContext(ctx)
	tasks.SetLimit(20)
	for i := range count {
		tasks.Go(func() error { return c.AddPeer(ctx, i, peer(i)) })
	}
	return tasks.Wait()
}

// AddPeer creates a Node of some 15 KB of JSON. Most of it is the list of
// images that a kubelet reports, so a client that requests more than it needs
// pays for it. The images depend on i, because identical ones would compress
// too well.
func (c *Cluster) AddPeer(ctx context.Context, i int, p Peer) error {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: p.Name, Annotations: p.Annotations,
		Labels: map[string]string{corev1.LabelOSStable: "linux", corev1.LabelHostname: p.Name}}}
	n.Spec.PodCIDR = p.PodCIDR.String()
	n.Spec.PodCIDRs = []string{n.Spec.PodCIDR}
	n, err := c.Client.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("add node %s: %w", p.Name, err)
	}
	for j := range 50 {
		image := fmt.Sprintf("registry.example.com/team/component-%d-%d", i%97, j)
		digest := fmt.Sprintf("%032x%032x", uint64(i)*0x9e3779b97f4a7c15, uint64(j)*0xbf58476d1ce4e5b9)
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{SizeBytes: 1 << 30,
			Names: []string{image + "@sha256:" + digest, fmt.Sprintf("%s:v1.%d.%d", image, i%13, j)}})
	}
	if _, err := c.Client.CoreV1().Nodes().UpdateStatus(ctx, n, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("report the images of node %s: %w", p.Name, err)
	}
	return nil
}

// Heartbeat writes what a kubelet writes every few minutes: that its node was
// ready at a time (in seconds). It does not change anything that matters to a
// network.
func (c *Cluster) Heartbeat(ctx context.Context, name string, at time.Time) error {
	patch := fmt.Sprintf(`{"status":{"conditions":[{"type":"Ready","status":"True","lastHeartbeatTime":%q}]}}`,
		at.UTC().Format(time.RFC3339))
	if _, err := c.Client.CoreV1().Nodes().PatchStatus(ctx, name, []byte(patch)); err != nil {
		return fmt.Errorf("heartbeat of node %s: %w", name, err)
	}
	return nil
}

// Annotate adds annotations to a Node.
func (c *Cluster) Annotate(ctx context.Context, name string, annotations map[string]string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	if err != nil {
		return err
	}
	if _, err := c.Client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch,
		metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("annotate node %s: %w", name, err)
	}
	return nil
}
