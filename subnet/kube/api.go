package kube

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"flannel/subnet/kube/format"
)

// metadataOnly has the server leave out spec and status.
const metadataOnly = protobuf + ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

// metadataList does so with a list.
const metadataList = protobuf + ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

// Retries are ours (see retry): the client's own would hide an outage for seconds.

// quiet keeps the client from logging: what goes wrong is returned, too, and told by us.
func quiet(ctx context.Context) context.Context { return klog.NewContext(ctx, klog.Logger{}) }

// get reads one Node, as it is at a version or later; "" for what is true now, which is a read of etcd.
func (m *Manager) get(ctx context.Context, name, at string) (*format.Node, error) {
	return m.parse(m.nodes(protobuf, at).Name(name).Do(quiet(ctx)))
}

func (m *Manager) parse(answer rest.Result) (*format.Node, error) {
	if err := answer.Error(); err != nil { // Raw's own error lacks what the server says
		return nil, err
	}
	raw, err := answer.Raw()
	if err != nil {
		return nil, err
	}
	object, err := format.Unwrap(raw)
	if err != nil {
		return nil, err
	}
	return format.ParseNode(object, m.o.Prefix)
}

// list hands over whole Nodes, or the one called only, and returns where the list stands in the history of the store.
// at is a version for what the API server has in memory at that version or later, "" for what is true now.
func (m *Manager) list(ctx context.Context, only, at string, each func(*format.Node)) (version string, err error) {
	r := m.nodes(protobuf, at)
	if only != "" {
		r = r.Param("fieldSelector", "metadata.name="+only)
	}
	return m.stream(ctx, r, each)
}

// listMetadata hands over all Nodes without their podCIDRs.
func (m *Manager) listMetadata(ctx context.Context, at string, each func(*format.Node)) (version string, err error) {
	return m.stream(ctx, m.nodes(metadataList, at), each)
}

// storeVersion asks where the history of the store stands now.
func (m *Manager) storeVersion(ctx context.Context) (string, error) {
	return m.stream(ctx, m.nodes(metadataList, "").Param("limit", "1"), func(*format.Node) {})
}

func (m *Manager) nodes(accept, at string) *rest.Request {
	return m.api.Get().Resource("nodes").SetHeader("Accept", accept).MaxRetries(0).Param("resourceVersion", at)
}

func (m *Manager) stream(ctx context.Context, r *rest.Request, each func(*format.Node)) (version string, err error) {
	body, err := r.Stream(quiet(ctx))
	if err != nil {
		return "", err
	}
	defer body.Close() //nolint:errcheck // nothing is lost with it
	return format.ParseList(body, m.o.Prefix, each)
}

// nodesAt reads whole Nodes as they are at a version or later. Those that no longer exist are missing. With an error it
// returns those that it has read.
//
// The API cannot be asked for several names. Many Nodes are selected by their label kubernetes.io/hostname, and what that
// misses is read by name. The label is only an index: the name decides.
func (m *Manager) nodesAt(ctx context.Context, wanted map[string]*format.Node, at string) (map[string]*format.Node, error) {
	var mu sync.Mutex
	got := make(map[string]*format.Node, len(wanted))
	take := func(n *format.Node) {
		mu.Lock()
		defer mu.Unlock()
		if wanted[n.Name] != nil {
			got[n.Name] = n
		}
	}
	for _, selector := range hostnameSelectors(wanted) {
		if _, err := m.stream(ctx, m.nodes(protobuf, at).Param("labelSelector", selector), take); err != nil {
			return got, err
		}
	}
	var reading errgroup.Group // that goes on after an error
	reading.SetLimit(4)
	for name := range wanted {
		mu.Lock()
		there := got[name] != nil
		mu.Unlock()
		if there {
			continue
		}
		reading.Go(func() error {
			n, err := m.get(ctx, name, at)
			if err == nil {
				take(n)
			}
			if apierrors.IsNotFound(err) {
				err = nil
			}
			return err
		})
	}
	return got, reading.Wait()
}

const (
	// maxSelector bounds a selector, in bytes: what stands between us and the API server may not like long URLs.
	maxSelector = 4 << 10
	// minSelected is the number of Nodes from which a list is cheaper than one request for each: the API server's fair
	// queueing counts a list among thousands of Nodes as ten requests, whatever it selects.
	minSelected = 10
)

// hostnameSelectors select the Nodes that have a hostname, if there are many.
func hostnameSelectors(wanted map[string]*format.Node) (selectors []string) {
	var names []string
	for _, n := range wanted {
		if n.Hostname != "" {
			names = append(names, n.Hostname)
		}
	}
	if len(names) < minSelected {
		return nil
	}
	slices.Sort(names)
	for len(names) > 0 {
		count, size := 0, 0
		for count < len(names) && (count == 0 || size+len(names[count]) < maxSelector) {
			size += len(names[count]) + 1
			count++
		}
		selectors = append(selectors, corev1.LabelHostname+" in ("+strings.Join(names[:count], ",")+")")
		names = names[count:]
	}
	return selectors
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
func (m *Manager) patchStatus(ctx context.Context, name string, patch []byte) (*format.Node, error) {
	return m.parse(m.api.Patch(types.StrategicMergePatchType).Resource("nodes").Name(name).SubResource("status").
		SetHeader("Accept", metadataOnly).MaxRetries(0).Body(patch).Do(quiet(ctx)))
}

// conditions reads those of a Node, as they are at a version or later.
func (m *Manager) conditions(ctx context.Context, name, at string) ([]corev1.NodeCondition, error) {
	var n corev1.Node
	err := m.nodes(protobuf, at).Name(name).Do(quiet(ctx)).Into(&n)
	return n.Status.Conditions, err
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

// expired reports whether the history no longer reaches back to where we were: only a new list helps.
func expired(err error) bool { return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) }

// ahead reports whether the history does not reach as far as we were, as in an API server that lags, or after the store
// was restored from a backup.
func ahead(err error) bool {
	return apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge)
}

// refused tells whether the API server answered, and does not let us.
func refused(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) }
