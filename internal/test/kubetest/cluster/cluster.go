// Package cluster does with a Kubernetes API server what administrators,
// kubectl and kubelet do: it applies manifests, registers and deletes nodes,
// and creates the tokens that flannel's pods get. Package kubetest and the lab
// use it.
package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	corev1 "k8s.io/api/core/v1"
)

// Cluster is an API server with the rights of its administrator. Its methods may be called
// from any goroutine.
type Cluster struct {
	Config *rest.Config // read-only: copy it to change it
	Client kubernetes.Interface
}

// Open creates a Cluster from the administrator's configuration. It makes no request.
func Open(config *rest.Config) (*Cluster, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &Cluster{config, client}, nil
}

// Objects returns the objects in a manifest of several YAML documents.
func Objects(manifest []byte) (objects []*unstructured.Unstructured, err error) {
	d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifest), 4096)
	for {
		var o unstructured.Unstructured
		if err := d.Decode(&o.Object); errors.Is(err, io.EOF) {
			return objects, nil
		} else if err != nil {
			return nil, fmt.Errorf("parse manifest: %w", err)
		}
		if len(o.Object) > 0 { // skip documents that only contain comments
			objects = append(objects, &o)
		}
	}
}

// Apply does what `kubectl apply --server-side --validate=strict` does, object
// by object: unknown fields are errors. With dryRun the server validates the
// objects and stores nothing.
func (c *Cluster) Apply(ctx context.Context, dryRun bool, objects ...*unstructured.Unstructured) error {
	client, err := dynamic.NewForConfig(c.Config)
	if err != nil {
		return err
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(c.Client.Discovery()))
	for _, o := range objects {
		kind := o.GroupVersionKind()
		mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if err != nil {
			return fmt.Errorf("apply %s %s: %w", kind.Kind, o.GetName(), err)
		}
		text, err := o.MarshalJSON()
		if err != nil {
			return err
		}
		opts := metav1.PatchOptions{FieldManager: "flannel-test", FieldValidation: metav1.FieldValidationStrict,
			Force: new(true)} // fields that others have set, too
		if dryRun {
			opts.DryRun = []string{metav1.DryRunAll}
		}
		var in dynamic.ResourceInterface = client.Resource(mapping.Resource)
		if mapping.Scope.Name() == "namespace" {
			in = client.Resource(mapping.Resource).Namespace(o.GetNamespace())
		}
		_, err = in.Patch(ctx, o.GetName(), "application/apply-patch+yaml", text, opts)
		// Again while the server of a busy machine does not answer in time.
		for ctx.Err() == nil && (apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err)) {
			_, err = in.Patch(ctx, o.GetName(), "application/apply-patch+yaml", text, opts)
		}
		if err != nil {
			return fmt.Errorf("apply %s %s: %w", kind.Kind, o.GetName(), err)
		}
	}
	return nil
}

// AddNode registers a node as kubelet does, with its addresses. A controller assigns its
// podCIDRs later: see PodCIDRs.
func (c *Cluster) AddNode(ctx context.Context, name string, addresses ...netip.Addr) error {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name,
		Labels: map[string]string{"kubernetes.io/os": "linux", "kubernetes.io/hostname": name}}}
	for _, a := range addresses {
		n.Status.Addresses = append(n.Status.Addresses,
			corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
	}
	// Report a Ready node, as kubelet does.
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue,
		Reason: "KubeletReady", LastTransitionTime: metav1.Now()}}
	if _, err := c.Client.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("add node %s: %w", name, err)
	}
	return nil
}

// PodCIDRs waits until the controller has assigned podCIDRs to the node, or until ctx ends,
// and returns them.
func (c *Cluster) PodCIDRs(ctx context.Context, name string) ([]netip.Prefix, error) {
	for {
		n, err := c.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err == nil && len(n.Spec.PodCIDRs) > 0 {
			return prefixes(n.Spec.PodCIDRs)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the podCIDR of %s: %w", name, errors.Join(ctx.Err(), err))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func prefixes(texts []string) (all []netip.Prefix, err error) {
	for _, s := range texts {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}
