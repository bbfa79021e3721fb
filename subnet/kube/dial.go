package kube

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/transport"

	"flannel/subnet/patience"
)

const protobuf = "application/vnd.kubernetes.protobuf"

// dial makes the client. Its errors are those of a wrong option or file; it does not connect.
func (o Options) dial() (*rest.RESTClient, *wire, error) {
	cfg, err := o.credentials()
	if err != nil {
		return nil, nil, err
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), metav1.AddMetaToScheme(scheme)); err != nil {
		return nil, nil, fmt.Errorf("register the API's types: %w", err)
	}
	cfg.APIPath, cfg.GroupVersion = "/api", &corev1.SchemeGroupVersion
	cfg.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	cfg.ContentType, cfg.AcceptContentTypes = protobuf, protobuf+",application/json"
	cfg.UserAgent = o.UserAgent
	cfg.QPS, cfg.Burst = 50, 100 // far more than ever needed: a bound on what a fault could do to the API server
	w, err := newWire(cfg)
	if err != nil {
		return nil, nil, err
	}
	var rt http.RoundTripper = w
	if o.wrap != nil {
		rt = o.wrap(rt)
	}
	if rt, err = transport.HTTPWrappersForConfig(w.cfg, rt); err != nil {
		return nil, nil, fmt.Errorf("credentials for the Kubernetes API: %w", err)
	}
	client, err := rest.RESTClientForConfigAndClient(cfg, &http.Client{Transport: rt})
	if err != nil {
		return nil, nil, fmt.Errorf("client of the Kubernetes API: %w", err)
	}
	return client, w, nil
}

// credentials are the kubeconfig's, or those that every pod has; the URL, where given, counts for more than theirs.
func (o Options) credentials() (*rest.Config, error) {
	if o.Kubeconfig == "" {
		cfg, err := rest.InClusterConfig()
		switch {
		case err == nil && o.APIURL != "":
			cfg.Host = o.APIURL
			return cfg, nil
		case err == nil:
			return cfg, nil
		case o.APIURL == "" || !errors.Is(err, rest.ErrNotInCluster) && !errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("credentials for the Kubernetes API: %w (outside of a pod, give --kubeconfig-file)", err)
		}
		return &rest.Config{Host: o.APIURL}, nil
	}
	cfg, err := clientcmd.BuildConfigFromFlags(o.APIURL, o.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", o.Kubeconfig, err)
	}
	return cfg, nil
}

// A connection that falls silent is noticed after ping + pong; a server that is back, within dialTimeout and a pause.
const (
	ping        = 5 * time.Second // of silence, before we ask
	pong        = 5 * time.Second
	dialTimeout = 4 * time.Second
	// headers bounds how long an answer may take to begin: the API server gives its own requests a minute.
	headers = 30 * time.Second
)

// wire is the connection to the API server. After anything went wrong, the next request goes over a new one, made with
// what the files of certificates hold then: an old one may be dead without knowing, or have become a stranger's when
// its certificate expired. (Tokens are read again by what wraps it.)
type wire struct {
	cfg   *transport.Config
	conns patience.Conns

	mu sync.Mutex
	rt *http.Transport
}

func newWire(cfg *rest.Config) (*wire, error) {
	c, err := cfg.TransportConfig()
	if err != nil {
		return nil, fmt.Errorf("credentials for the Kubernetes API: %w", err)
	}
	w := &wire{cfg: c}
	w.rt, err = w.make()
	return w, err
}

func (w *wire) make() (*http.Transport, error) {
	fresh := *w.cfg // TLSConfigFor writes into it what it has read
	secure, err := transport.TLSConfigFor(&fresh)
	if err != nil {
		return nil, fmt.Errorf("certificates for the Kubernetes API: %w", err)
	}
	dial := (&net.Dialer{Timeout: dialTimeout, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: ping, Interval: 2 * time.Second, Count: 3}}).DialContext
	if w.cfg.DialHolder != nil {
		dial = w.cfg.DialHolder.Dial
	}
	keep := func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return w.conns.Keep(c), nil
	}
	proxy := http.ProxyFromEnvironment
	if w.cfg.Proxy != nil {
		proxy = w.cfg.Proxy
	}
	return &http.Transport{
		DialContext: keep, TLSClientConfig: secure, TLSHandshakeTimeout: dialTimeout, Proxy: proxy,
		ForceAttemptHTTP2: true, HTTP2: &http.HTTP2Config{SendPingTimeout: ping, PingTimeout: pong},
		ResponseHeaderTimeout: headers, IdleConnTimeout: 90 * time.Second, DisableCompression: w.cfg.DisableCompression,
	}, nil
}

func (w *wire) current() *http.Transport {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rt
}

// RoundTrip implements http.RoundTripper.
func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	rt := w.current()
	resp, err := rt.RoundTrip(r)
	if err != nil && r.Context().Err() == nil || err == nil && resp.StatusCode == http.StatusUnauthorized {
		w.renew(rt)
	}
	return resp, err
}

// renew replaces a connection that failed. What still runs over it may end there.
func (w *wire) renew(failed *http.Transport) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.rt != failed {
		return // somebody else has noticed, too
	}
	if rt, err := w.make(); err == nil { // else its files are just being replaced: the next failure tries again
		w.rt = rt
		failed.CloseIdleConnections()
	}
}
