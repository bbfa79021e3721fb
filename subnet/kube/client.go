package kube

// An apiClient sends the requests of the lease manager to the Kubernetes API server: reads and watches of Nodes,
// patches of our own Node, Events, and the questions of commands such as the doctor (examine.go). It holds the
// connections; it never retries, and keeps nothing of what it receives. The Manager has one for all its goroutines.

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
)

// apiClient sends requests to one API server. Its methods may run concurrently. Make one with newClient, and close it.
type apiClient struct {
	options   Options
	prefix    string                          // see Options
	sender    atomic.Pointer[rest.RESTClient] // sends by below
	below     http.RoundTripper               // what is below authentication: transport, wrapped by Options.wrap
	transport *reconnector                    // opens connections (transport.go); its mu guards the fields that follow

	kubeconfig []byte // the content of the file that is in use
	refused    string // the error about a later content; "": none
}

// newClient prepares a client and does not connect. Of the options, only those that say how to reach the API server, Prefix
// and Log are used; the zero Options mean the pod's service account. Its errors are about a wrong option or file.
func newClient(o Options) (*apiClient, error) {
	reconnecting := &reconnector{log: cmp.Or(o.Log, slog.New(slog.DiscardHandler))}
	c := &apiClient{options: o, prefix: o.Prefix, transport: reconnecting}
	c.below = c.transport
	if o.wrap != nil {
		c.below = o.wrap(c.below)
	}
	if o.Kubeconfig != "" {
		c.kubeconfig, _ = os.ReadFile(o.Kubeconfig) // configure returns the error
		c.transport.reload = c.reload
	}
	if err := c.configure(); err != nil {
		return nil, err
	}
	return c, nil
}

// configure uses the server and the credentials of the files that the options name, as they are now. With an error, it
// changes nothing. transport.mu must be held once the client sends requests.
func (c *apiClient) configure() error {
	cfg, err := c.options.restConfig()
	if err != nil {
		return err
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), metav1.AddMetaToScheme(scheme)); err != nil {
		return fmt.Errorf("register the API's types: %w", err)
	}
	cfg.APIPath, cfg.GroupVersion = "/api", &corev1.SchemeGroupVersion // /api/v1, where Nodes are
	cfg.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	cfg.ContentType, cfg.AcceptContentTypes = protobuf, protobuf+",application/json"
	cfg.UserAgent = c.options.UserAgent
	cfg.QPS, cfg.Burst = 50, 100 // far more than needed: limits the load that a bug could put on the API server
	// A kubeconfig may name a program that gets credentials (users.exec). TransportConfig wraps the dialer for it, to close
	// the connections when the credentials change. Without a dialer it takes one that waits for 30 s.
	cfg.Dial = dialer.DialContext
	transportConfig, err := cfg.TransportConfig()
	if err != nil {
		return fmt.Errorf("credentials for the Kubernetes API: %w", err)
	}
	// From the outside: authentication and user agent, Options.wrap, the reconnector, an http.Transport.
	rt, err := transport.HTTPWrappersForConfig(transportConfig, c.below)
	if err != nil {
		return fmt.Errorf("credentials for the Kubernetes API: %w", err)
	}
	sender, err := rest.RESTClientForConfigAndClient(cfg, &http.Client{Transport: rt})
	if err != nil {
		return fmt.Errorf("client of the Kubernetes API: %w", err)
	}
	if err := c.transport.use(transportConfig); err != nil {
		return err
	}
	c.sender.Store(sender)
	return nil
}

// reload uses the kubeconfig if its content has changed and is valid. The reconnector calls it after a failed request, with
// its mu held.
func (c *apiClient) reload() {
	raw, err := os.ReadFile(c.options.Kubeconfig)
	switch {
	case errors.Is(err, fs.ErrNotExist) || err == nil && len(raw) == 0: // it is probably being replaced
		return
	case err == nil && bytes.Equal(raw, c.kubeconfig):
		c.refused = ""
		return
	case err == nil:
		err = c.configure()
	}
	if err != nil {
		if err.Error() != c.refused {
			c.refused = err.Error()
			c.transport.log.Warn("cannot use the changed kubeconfig, keeping the former credentials",
				"file", c.options.Kubeconfig, "error", err)
		}
		return
	}
	c.kubeconfig, c.refused = raw, ""
	c.transport.log.Info("kubeconfig has changed, using its credentials", "file", c.options.Kubeconfig)
}

// rest returns the client for the next request.
func (c *apiClient) rest() *rest.RESTClient { return c.sender.Load() }

// Close closes idle connections. A later request would open a new one.
func (c *apiClient) Close() { c.Transport().CloseIdleConnections() }

// DropConnections closes every connection. Requests that use one fail at once.
func (c *apiClient) DropConnections() { c.transport.conns.Drop() }

// Transport returns the transport for the next request, which a failed request replaces by another one.
func (c *apiClient) Transport() *http.Transport { return c.transport.current() }
