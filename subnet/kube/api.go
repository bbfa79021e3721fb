package kube

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// metadataOnly has the server leave out spec and status.
const metadataOnly = protobuf + ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

// Retries are ours (see retry): the client's own would hide an outage for seconds.

// quiet keeps the client from logging: what goes wrong is returned, too, and told by us.
func quiet(ctx context.Context) context.Context { return klog.NewContext(ctx, klog.Logger{}) }

// get reads one Node.
func (m *Manager) get(ctx context.Context, name string) (*node, error) {
	return m.parse(m.api.Get().Resource("nodes").Name(name).SetHeader("Accept", protobuf).MaxRetries(0).Do(quiet(ctx)))
}

func (m *Manager) parse(answer rest.Result) (*node, error) {
	if err := answer.Error(); err != nil { // Raw's own error lacks what the server says
		return nil, err
	}
	raw, err := answer.Raw()
	if err != nil {
		return nil, err
	}
	object, err := unwrap(raw)
	if err != nil {
		return nil, err
	}
	return parseNode(object, m.o.Prefix)
}

// list hands over the Nodes, or the one called only, and returns where the list stands in the history of the store.
// at is a version for what the API server has in memory at that version or later, "" for what is true now.
func (m *Manager) list(ctx context.Context, only, at string, each func(*node)) (version string, err error) {
	r := m.api.Get().Resource("nodes").SetHeader("Accept", protobuf).MaxRetries(0).Param("resourceVersion", at)
	if only != "" {
		r = r.Param("fieldSelector", "metadata.name="+only)
	}
	body, err := r.Stream(quiet(ctx))
	if err != nil {
		return "", err
	}
	defer body.Close() //nolint:errcheck // nothing is lost with it
	return parseList(body, m.o.Prefix, each)
}

// watch opens a watch of all Nodes, or the one called only, from a version on. Closing what it returns ends it.
func (m *Manager) watch(ctx context.Context, only, version string) (io.ReadCloser, error) {
	r := m.api.Get().Resource("nodes").SetHeader("Accept", metadataOnly).MaxRetries(0).
		Param("watch", "true").Param("resourceVersion", version).Param("allowWatchBookmarks", "true").
		// The server ends it then. Not all at once, and not never: so the load spreads over its fellows again.
		Param("timeoutSeconds", strconv.Itoa(300+rand.IntN(300)))
	if only != "" {
		r = r.Param("fieldSelector", "metadata.name="+only)
	}
	return r.Stream(quiet(ctx))
}

// patchStatus applies a strategic merge patch to the status of the Node and to its metadata.
func (m *Manager) patchStatus(ctx context.Context, name string, patch []byte) (*node, error) {
	return m.parse(m.api.Patch(types.StrategicMergePatchType).Resource("nodes").Name(name).SubResource("status").
		SetHeader("Accept", metadataOnly).MaxRetries(0).Body(patch).Do(quiet(ctx)))
}

func (m *Manager) conditions(ctx context.Context, name string) (types.UID, []corev1.NodeCondition, error) {
	var n corev1.Node
	err := m.api.Get().Resource("nodes").Name(name).MaxRetries(0).Do(quiet(ctx)).Into(&n)
	return n.UID, n.Status.Conditions, err
}

func (m *Manager) createEvent(ctx context.Context, e *corev1.Event) error {
	return m.api.Post().Namespace(e.Namespace).Resource("events").MaxRetries(0).Body(e).Do(quiet(ctx)).Error()
}

// nodeOf asks on what node a pod runs.
func (m *Manager) nodeOf(ctx context.Context, namespace, pod string) (string, error) {
	var p corev1.Pod
	if err := m.api.Get().Namespace(namespace).Resource("pods").Name(pod).MaxRetries(0).Do(quiet(ctx)).Into(&p); err != nil {
		return "", err
	}
	if p.Spec.NodeName == "" {
		return "", fmt.Errorf("pod %s/%s has no node yet", namespace, pod)
	}
	return p.Spec.NodeName, nil
}

// expired tells whether the history no longer reaches back to where we were, or does not yet reach that far, as after
// the store was restored from a backup: only a new list helps.
func expired(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) || apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge)
}

// refused tells whether the API server answered, and does not let us.
func refused(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) }
