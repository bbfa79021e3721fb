package kube

// An apiClient sends the requests of the lease manager to the Kubernetes API server: reads and watches of Nodes,
// patches of our own Node, Events, and the questions of commands such as the doctor (examine.go). It holds the
// connections; it never retries, and keeps nothing of what it reads. The Manager has one for all its goroutines.

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
)

// apiClient sends requests to one API server. Its methods may run concurrently. Make one with newClient, and close it.
type apiClient struct {
	rest      *rest.RESTClient // sends by transport
	transport *reconnector     // opens connections (transport.go)
	prefix    string           // see Options
}

// newClient prepares a client and does not connect. Of the options, only those that say how to reach the API server, Prefix
// and Log are used; the zero Options mean the pod's service account. Its errors are about a wrong option or file.
func newClient(o Options) (*apiClient, error) {
	cfg, err := o.restConfig()
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), metav1.AddMetaToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("register the API's types: %w", err)
	}
	cfg.APIPath, cfg.GroupVersion = "/api", &corev1.SchemeGroupVersion // /api/v1, where Nodes are
	cfg.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	cfg.ContentType, cfg.AcceptContentTypes = protobuf, protobuf+",application/json"
	cfg.UserAgent = o.UserAgent
	cfg.QPS, cfg.Burst = 50, 100 // far more than needed: limits the load that a bug could put on the API server
	reconnecting, err := newReconnector(cfg)
	if err != nil {
		return nil, err
	}
	reconnecting.log = cmp.Or(o.Log, reconnecting.log) // newReconnector has set one that discards
	// From the outside: authentication and user agent, Wrap, the reconnector, an http.Transport.
	var rt http.RoundTripper = reconnecting
	if o.wrap != nil {
		rt = o.wrap(rt)
	}
	if rt, err = transport.HTTPWrappersForConfig(reconnecting.cfg, rt); err != nil {
		return nil, fmt.Errorf("credentials for the Kubernetes API: %w", err)
	}
	restClient, err := rest.RESTClientForConfigAndClient(cfg, &http.Client{Transport: rt})
	if err != nil {
		return nil, fmt.Errorf("client of the Kubernetes API: %w", err)
	}
	return &apiClient{rest: restClient, transport: reconnecting, prefix: o.Prefix}, nil
}

// Close closes idle connections. A later request would open a new one.
func (c *apiClient) Close() { c.Transport().CloseIdleConnections() }

// DropConnections closes every connection. Requests that use one fail at once.
func (c *apiClient) DropConnections() { c.transport.conns.Drop() }

// Transport returns the transport for the next request, which a failed request replaces by another one.
func (c *apiClient) Transport() *http.Transport { return c.transport.current() }
