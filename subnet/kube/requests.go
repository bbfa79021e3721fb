package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// protobuf is the content type of Kubernetes' own encoding.
const protobuf = "application/vnd.kubernetes.protobuf"

// metadataOnly, as the header Accept, makes the server leave out the spec and the status of an object; metadataList, of
// each item of a list. parseNode reads the result like a Node.
const metadataOnly = protobuf + ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

const metadataList = protobuf + ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

// Every request sets MaxRetries(0): retries of client-go would hide an outage from the caller for seconds. The callers
// retry: Manager.retry, follow, lookups and the reporter.

// quiet silences client-go, which logs errors that it also returns: the zero Logger discards.
func quiet(ctx context.Context) context.Context { return klog.NewContext(ctx, klog.Logger{}) }

// Node reads one Node, as it is at a resourceVersion or later. At "" it reads the newest version, which the API server
// reads from etcd.
func (c *apiClient) Node(ctx context.Context, name, at string) (*storedNode, error) {
	return c.parseNode(c.nodeRequest(protobuf, at).Name(name).Do(quiet(ctx)))
}

// raw returns the body of a response. Its error has the server's message, which the error of Result.Raw lacks.
func raw(answer rest.Result) ([]byte, error) {
	body, err := answer.Raw()
	return body, cmp.Or(answer.Error(), err)
}

// parseNode parses the answer to a request for one Node.
func (c *apiClient) parseNode(answer rest.Result) (*storedNode, error) {
	body, err := raw(answer)
	if err != nil {
		return nil, err
	}
	object, err := unwrap(body)
	if err != nil {
		return nil, err
	}
	return parseNode(object, c.prefix)
}

// Nodes calls each with every Node, or with the one named only, and returns the resourceVersion of the list. At a
// resourceVersion the API server answers from its memory, with that version or a later one; at "", from etcd.
func (c *apiClient) Nodes(ctx context.Context, only, at string, each func(*storedNode)) (version string, err error) {
	r := c.nodeRequest(protobuf, at)
	if only != "" {
		r = r.Param("fieldSelector", "metadata.name="+only)
	}
	return c.readList(ctx, r, each)
}

// NodesMetadata is like Nodes, without the Nodes' spec, which has their podCIDRs.
func (c *apiClient) NodesMetadata(ctx context.Context, at string, each func(*storedNode)) (version string, err error) {
	return c.readList(ctx, c.nodeRequest(metadataList, at), each)
}

// StoreVersion returns the resourceVersion of the store now. It lists one Node from etcd, a small quorum read.
func (c *apiClient) StoreVersion(ctx context.Context) (string, error) {
	return c.readList(ctx, c.nodeRequest(metadataList, "").Param("limit", "1"), func(*storedNode) {})
}

// nodeRequest returns a request for Nodes at a resourceVersion, "" for the newest one, in an encoding (accept).
func (c *apiClient) nodeRequest(accept, at string) *rest.Request {
	return c.rest().Get().Resource("nodes").SetHeader("Accept", accept).MaxRetries(0).Param("resourceVersion", at)
}

// readList reads a list, and calls each with every Node while the rest arrives.
func (c *apiClient) readList(ctx context.Context, r *rest.Request, each func(*storedNode)) (version string, err error) {
	body, err := r.Stream(quiet(ctx)) // an HTTP status of failure is an error
	if err != nil {
		return "", err
	}
	defer body.Close() //nolint:errcheck // it was only read
	return parseList(body, c.prefix, each)
}

// NodesByName reads the Nodes whose names are the keys of wanted, as they are at a resourceVersion or later. The values
// are the Nodes as last seen; nil: never. Nodes that no longer exist are missing in the result. With an error it returns
// the Nodes that it has read so far.
//
// The API has no request for several names. So ten Nodes or more are listed by their label kubernetes.io/hostname, which
// usually is the Node's name. The label need not be right: a listed Node counts only if its name is wanted, and wanted
// Nodes that were not listed are read one by one.
func (c *apiClient) NodesByName(ctx context.Context, wanted map[string]*storedNode, at string) (map[string]*storedNode, error) {
	var mu sync.Mutex // guards got: up to four goroutines call take
	got := make(map[string]*storedNode, len(wanted))
	take := func(n *storedNode) {
		mu.Lock()
		defer mu.Unlock()
		if _, ok := wanted[n.Name]; ok {
			got[n.Name] = n
		}
	}
	for _, selector := range hostnameSelectors(wanted) {
		if _, err := c.readList(ctx, c.nodeRequest(protobuf, at).Param("labelSelector", selector), take); err != nil {
			return got, err
		}
	}
	var reading errgroup.Group // without a context: an error does not end the other reads
	reading.SetLimit(4)        // requests at the same time
	for name := range wanted {
		mu.Lock()
		listed := got[name] != nil
		mu.Unlock()
		if listed {
			continue
		}
		reading.Go(func() error {
			n, err := c.Node(ctx, name, at)
			if err == nil {
				take(n)
			}
			if isMissing(err) {
				err = nil
			}
			return err
		})
	}
	return got, reading.Wait()
}

const (
	// maxSelector bounds a label selector, in bytes, because proxies may reject long URLs.
	maxSelector = 4 << 10
	// minSelected is the number of Nodes from which a list is cheaper than one request for each: the API server's fair
	// queueing counts a list in a cluster of thousands of Nodes as ten requests, however few it selects.
	minSelected = 10
)

// hostnameSelectors returns label selectors for the wanted Nodes that had a hostname label when last seen, or none if
// these are fewer than minSelected. Each selector is shorter than about maxSelector.
func hostnameSelectors(wanted map[string]*storedNode) (selectors []string) {
	var names []string
	for _, n := range wanted {
		if n != nil && n.Hostname != "" {
			names = append(names, n.Hostname)
		}
	}
	if len(names) < minSelected {
		return nil
	}
	slices.Sort(names)
	for len(names) > 0 {
		count, size := 0, 0 // of the names in this selector; at least one, so that the loop ends
		for count < len(names) && (count == 0 || size+len(names[count]) < maxSelector) {
			size += len(names[count]) + 1
			count++
		}
		selectors = append(selectors, corev1.LabelHostname+" in ("+strings.Join(names[:count], ",")+")")
		names = names[count:]
	}
	return selectors
}

// Watch opens a watch of the metadata of all Nodes, or of the one named only, which begins after a resourceVersion, and
// which the server is asked to end after limit. Closing the returned stream ends the watch.
func (c *apiClient) Watch(ctx context.Context, only, version string, limit time.Duration) (io.ReadCloser, error) {
	r := c.rest().Get().Resource("nodes").SetHeader("Accept", metadataOnly).MaxRetries(0).
		Param("watch", "true").Param("resourceVersion", version).Param("allowWatchBookmarks", "true").
		Param("timeoutSeconds", strconv.Itoa(int(limit.Seconds())))
	if only != "" {
		r = r.Param("fieldSelector", "metadata.name="+only)
	}
	return r.Stream(quiet(ctx))
}

// PatchStatus applies a strategic merge patch to a Node's status and metadata. It returns the Node without its spec.
func (c *apiClient) PatchStatus(ctx context.Context, name string, patch []byte) (*storedNode, error) {
	return c.parseNode(c.rest().Patch(types.StrategicMergePatchType).Resource("nodes").Name(name).SubResource("status").
		SetHeader("Accept", metadataOnly).MaxRetries(0).Body(patch).Do(quiet(ctx)))
}

// Conditions reads the conditions of a Node, as they are at a resourceVersion or later.
func (c *apiClient) Conditions(ctx context.Context, name, at string) ([]corev1.NodeCondition, error) {
	var n corev1.Node
	err := c.nodeRequest(protobuf, at).Name(name).Do(quiet(ctx)).Into(&n)
	return n.Status.Conditions, err
}

// CreateEvent writes an Event.
func (c *apiClient) CreateEvent(ctx context.Context, e *corev1.Event) error {
	return c.rest().Post().Namespace(e.Namespace).Resource("events").MaxRetries(0).Body(e).Do(quiet(ctx)).Error()
}

// WindowsNodes returns the names of at most ten Windows nodes.
func (c *apiClient) WindowsNodes(ctx context.Context) (names []string, err error) {
	var nodes corev1.NodeList
	err = c.rest().Get().Resource("nodes").MaxRetries(0).
		Param("labelSelector", "kubernetes.io/os=windows").Param("limit", "10").Do(quiet(ctx)).Into(&nodes)
	for _, n := range nodes.Items {
		names = append(names, n.Name)
	}
	return names, err
}

// pageSize is the number of Nodes in a page of NodePage; kubectl has the same.
const pageSize = 500

// NodePage reads one page of the Nodes that match a label selector, with their status. next is "" for the first page,
// and the returned list has it for the page after, "" after the last one.
func (c *apiClient) NodePage(ctx context.Context, selector, next string) (*corev1.NodeList, error) {
	var page corev1.NodeList
	err := c.rest().Get().Resource("nodes").MaxRetries(0).Param("labelSelector", selector).
		Param("limit", strconv.Itoa(pageSize)).Param("continue", next).Do(quiet(ctx)).Into(&page)
	return &page, err
}

// errNoPod means that the pod whose Node is ours does not exist, or has no Node. It is the end of a sentence.
var errNoPod = errors.New("so that the name of this node is unknown: set NODE_NAME to the field spec.nodeName by the " +
	"downward API, or correct POD_NAME and POD_NAMESPACE")

// NodeOfPod returns the name of the Node on which a pod runs; errNoPod if there is no such pod, or while the pod has none.
func (c *apiClient) NodeOfPod(ctx context.Context, namespace, pod string) (string, error) {
	var p corev1.Pod
	err := c.rest().Get().Namespace(namespace).Resource("pods").Name(pod).MaxRetries(0).Do(quiet(ctx)).Into(&p)
	switch {
	case isMissing(err):
		return "", fmt.Errorf("pod %s/%s does not exist, %w", namespace, pod, errNoPod)
	case err != nil:
		return "", err
	case p.Spec.NodeName == "":
		return "", fmt.Errorf("pod %s/%s has no node, %w", namespace, pod, errNoPod)
	}
	return p.Spec.NodeName, nil
}

// isExpired reports whether the API server no longer has the history since the requested resourceVersion, so that the
// Nodes must be listed again.
func isExpired(err error) bool { return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) }

// isVersionTooLarge reports whether the requested resourceVersion is later than the API server's own. Either this API
// server lags behind etcd, or etcd was restored from a backup.
func isVersionTooLarge(err error) bool {
	return apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge)
}

// isDenied reports whether the API server did not authenticate or authorize the request.
func isDenied(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) }

// isMissing reports whether the API server answered that there is no such object. Something else that answers in its
// place, such as a proxy, may not know the path of the request.
func isMissing(err error) bool { return apierrors.IsNotFound(err) && !Unreachable(err) }
