package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// Examination is what the API server says when it is asked once, by a person who looks for a fault.
type Examination struct {
	Ahead    time.Duration // by how much the API server's clock is ahead of ours; precise to two seconds
	Node     string        // this node's name
	PodCIDRs []string      // its own, as they stand there
	Windows  []string      // names of Windows nodes, one of several pages at most
}

// Examine asks. Of o it takes what says how to reach the API server and which node this is.
func Examine(ctx context.Context, o Options) (Examination, error) {
	if o.NodeName == "" && (o.PodName == "" || o.PodNamespace == "") {
		return Examination{}, errors.New("which node is this? Set the variable NODE_NAME, or POD_NAME and POD_NAMESPACE")
	}
	var watch clockWatch
	o.wrap = watch.wrap
	m := &Manager{o: o}
	var err error
	if m.api, m.wire, err = o.dial(); err != nil {
		return Examination{}, err
	}
	defer m.wire.current().CloseIdleConnections()
	name := o.NodeName
	if name == "" {
		if name, err = m.nodeOf(ctx, o.PodNamespace, o.PodName); err != nil {
			return Examination{}, fmt.Errorf("ask for pod %s/%s: %w", o.PodNamespace, o.PodName, err)
		}
	}
	n, err := m.get(ctx, name, "")
	if err != nil {
		return Examination{}, fmt.Errorf("ask for node %s: %w", name, err)
	}
	var windows corev1.NodeList
	err = m.api.Get().Resource("nodes").MaxRetries(0).Param("labelSelector", "kubernetes.io/os=windows").Param("limit", "10").
		Do(quiet(ctx)).Into(&windows)
	if err != nil {
		return Examination{}, fmt.Errorf("ask for Windows nodes: %w", err)
	}
	e := Examination{Node: name, PodCIDRs: n.CIDRs}
	for _, w := range windows.Items {
		e.Windows = append(e.Windows, w.Name)
	}
	e.Ahead, err = watch.ahead()
	return e, err
}

// Unheard tells of an error of Examine that the API server was asked, and that what came back, if anything, is not of it.
func Unheard(err error) bool {
	return errors.As(err, new(*url.Error)) || apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// Proxy is the HTTP proxy that requests to the API server go to, without its password; "": none. Of o it takes what says
// how to reach the API server, which it does not do.
func Proxy(o Options) (string, error) {
	cfg, err := o.credentials()
	if err != nil {
		return "", err
	}
	server, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return "", fmt.Errorf("address of the API server: %w", err)
	}
	w, err := newWire(cfg)
	if err != nil {
		return "", err
	}
	proxy, err := w.rt.Proxy(&http.Request{URL: server})
	switch {
	case err != nil:
		return "", fmt.Errorf("find the proxy for %s: %w", server, err)
	case proxy == nil:
		return "", nil
	}
	return proxy.Redacted(), nil
}

// clockWatch compares the clock of a server with ours, by the header Date of its answers (RFC 9110, section 6.6.1),
// which has whole seconds, cut off.
type clockWatch struct {
	next http.RoundTripper

	mu   sync.Mutex
	last time.Duration
	seen bool
}

func (c *clockWatch) wrap(next http.RoundTripper) http.RoundTripper {
	c.next = next
	return c
}

// RoundTrip implements http.RoundTripper.
func (c *clockWatch) RoundTrip(r *http.Request) (*http.Response, error) {
	before := time.Now()
	resp, err := c.next.RoundTrip(r)
	if err != nil {
		return resp, err
	}
	if date, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		middle := before.Add(time.Since(before) / 2)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.last, c.seen = date.Add(time.Second/2).Sub(middle), true
	}
	return resp, nil
}

func (c *clockWatch) ahead() (time.Duration, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.seen {
		return 0, errors.New("the API server's answers have no date")
	}
	return c.last, nil
}
