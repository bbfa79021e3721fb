// This file has what commands ask the API server, in processes without a Manager: doctor, cni-conf,
// check-config. Each function makes a client of its own and closes it.

package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Examination is what flanneld doctor learns from the API server about the cluster and this node.
type Examination struct {
	Ahead    time.Duration // the API server's clock minus ours, precise to two seconds
	Node     string        // this node's name
	PodCIDRs []string      // of this node's Node
	Windows  []string      // names of at most ten Windows nodes
}

// HasCredentials reports whether this process can read the kubeconfig, or without one has the service account of a pod.
func HasCredentials(o Options) bool {
	if o.Kubeconfig != "" {
		_, err := os.ReadFile(o.Kubeconfig)
		return err == nil
	}
	_, err := inCluster() // the service account
	return err == nil
}

// WindowsNodes returns the names of at most ten Windows nodes, for check-config.
func WindowsNodes(ctx context.Context, o Options) ([]string, error) {
	api, err := newClient(o)
	if err != nil {
		return nil, err
	}
	defer api.Close()
	return api.WindowsNodes(ctx)
}

// Examine asks the API server. Only the options that say how to reach it and which node this is are used. With an
// error, the Examination is zero, unless only Ahead is unknown.
func Examine(ctx context.Context, o Options) (Examination, error) {
	if o.NodeName == "" && (o.PodName == "" || o.PodNamespace == "") {
		return Examination{}, errors.New("name of this node is unknown: set NODE_NAME, or POD_NAME and POD_NAMESPACE")
	}
	var clock clockWatch
	o.wrap = func(next http.RoundTripper) http.RoundTripper {
		clock.next = next
		return &clock
	}
	api, err := newClient(o)
	if err != nil {
		return Examination{}, err
	}
	defer api.Close()
	name := o.NodeName
	if name == "" {
		if name, err = api.NodeOfPod(ctx, o.PodNamespace, o.PodName); err != nil {
			return Examination{}, fmt.Errorf("find the node of this pod: %w", err)
		}
	}
	n, err := api.Node(ctx, name, "") // "": the newest version
	if err != nil {
		return Examination{}, fmt.Errorf("read node %s: %w", name, err)
	}
	e := Examination{Node: name, PodCIDRs: n.CIDRs}
	if e.Windows, err = api.WindowsNodes(ctx); err != nil {
		return Examination{}, fmt.Errorf("list Windows nodes: %w", err)
	}
	ahead := clock.ahead.Load() // at the last of the requests above
	if ahead == nil {
		return e, errors.New("responses of the API server have no Date header")
	}
	e.Ahead = *ahead
	return e, nil
}

// Unreachable reports whether an error, such as one of Examine, means that the API server itself did not answer: there
// was no answer, or it came from something else, such as a proxy.
func Unreachable(err error) bool {
	return errors.As(err, new(*url.Error)) || apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// Proxy returns the URL of the HTTP proxy that requests to the API server are sent to, without its password, or "" if
// there is none. Only the options that say how to reach the API server are used. It asks a transport that is made for the
// question, and sends nothing.
func Proxy(o Options) (string, error) {
	api, err := newClient(o)
	if err != nil {
		return "", err
	}
	server := api.rest().Get().AbsPath("/").URL()
	proxy, err := api.transport.current().Proxy(&http.Request{URL: server})
	switch {
	case err != nil:
		return "", fmt.Errorf("find the proxy for %s: %w", server.Redacted(), err)
	case proxy == nil:
		return "", nil
	}
	return proxy.Redacted(), nil
}

// ServiceNetworks returns the networks from which Services get their addresses; see apiClient. Only the options that
// say how to reach the API server are used.
func ServiceNetworks(ctx context.Context, o Options) ([]netip.Prefix, error) {
	api, err := newClient(o)
	if err != nil {
		return nil, err
	}
	defer api.Close()
	return api.ServiceNetworks(ctx)
}

// NetConf returns the network configuration in a ConfigMap, "namespace/name": the value of its key net-conf.json, as it
// is. check-config validates it. Only the options that say how to reach the API server are used.
func NetConf(ctx context.Context, configMap string, o Options) ([]byte, error) {
	namespace, name, ok := strings.Cut(configMap, "/")
	if !ok || namespace == "" || name == "" {
		return nil, fmt.Errorf("%.80q is no name of a ConfigMap; write it as namespace/name", configMap)
	}
	api, err := newClient(o)
	if err != nil {
		return nil, err
	}
	defer api.Close()
	data, err := api.ConfigMap(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	raw, ok := data["net-conf.json"]
	if !ok {
		return nil, fmt.Errorf("the ConfigMap %s has no key net-conf.json", configMap)
	}
	return []byte(raw), nil
}

// clockWatch is a transport that compares the server's clock with ours, by the header Date of the responses (RFC 9110,
// section 6.6.1), which is truncated to seconds.
type clockWatch struct {
	next  http.RoundTripper
	ahead atomic.Pointer[time.Duration] // at the last response; nil: none had the header
}

// RoundTrip implements http.RoundTripper.
func (c *clockWatch) RoundTrip(r *http.Request) (*http.Response, error) {
	before := time.Now()
	resp, err := c.next.RoundTrip(r)
	if err != nil {
		return resp, err
	}
	if date, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		middle := before.Add(time.Since(before) / 2)              // when the server probably wrote the header
		c.ahead.Store(new(date.Add(time.Second / 2).Sub(middle))) // half a second is the truncated part on average
	}
	return resp, nil
}
