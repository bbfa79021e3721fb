package kube

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"flannel/internal/test/kubetest"
	"flannel/subnet"
)

// A connection that leads to an API server that answers pings, but no patch, is given up.
func TestHangingServer(t *testing.T) {
	t.Parallel()
	s := kubetest.Start(t)
	outside{t, s}.add("hanging-1", "10.244.1.0/24")
	target, err := url.Parse("https://" + s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.Transport = &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	var hanging atomic.Pointer[string] // the client's address of the first connection with a patch
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPatch {
			hanging.CompareAndSwap(nil, &r.RemoteAddr)
			if *hanging.Load() == r.RemoteAddr {
				<-r.Context().Done()
				return
			}
		}
		proxy.ServeHTTP(w, r)
	}))
	srv.EnableHTTP2 = true
	srv.StartTLS()
	t.Cleanup(srv.Close)

	c := api.NewConfig()
	c.Clusters["x"] = &api.Cluster{Server: srv.URL, CertificateAuthorityData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})}
	c.AuthInfos["x"], c.Contexts["x"], c.CurrentContext = &api.AuthInfo{Token: s.Token("hanging-1")}, &api.Context{Cluster: "x", AuthInfo: "x"}, "x"
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*c, kubeconfig); err != nil {
		t.Fatal(err)
	}
	n := start(t, s, "hanging-1", func(o *Options) { o.Kubeconfig = kubeconfig })
	l, err := n.Acquire(t.Context(), tenNet, subnet.Lease{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*requestTimeout)
	defer cancel()
	if err := n.Publish(ctx, described(l, "192.168.0.1", mac1)); err != nil {
		t.Error(err)
	}
	if hanging.Load() == nil {
		t.Error("no patch was sent")
	}
}

// silentWatch is the body of a watch without events and without an end.
type silentWatch struct{ ctx context.Context }

func (w silentWatch) Read([]byte) (int, error) { <-w.ctx.Done(); return 0, w.ctx.Err() }

func (silentWatch) Close() error { return nil }

// A watch that the server should have ended is given up, with its connection.
func TestWatchWithoutEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		list := kubetest.Encode(t, &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}, Items: []corev1.Node{*kubetest.Sample(0)}}, "NodeList")
		var limit time.Duration // of the first watch
		began := time.Now()
		o := Options{APIURL: "http://127.0.0.1:1", NodeName: "own", Prefix: prefix}
		o.wrap = func(http.RoundTripper) http.RoundTripper {
			return &traffic{intercept: func(r *http.Request, _ http.RoundTripper) (*http.Response, error) {
				resp := &http.Response{StatusCode: http.StatusOK, Request: r, Header: http.Header{"Content-Type": {protobuf}}, Body: io.NopCloser(bytes.NewReader(list))}
				if seconds := r.URL.Query().Get("timeoutSeconds"); seconds != "" {
					resp.Body = silentWatch{r.Context()}
					if limit > 0 {
						cancel()
					} else if limit, _ = time.ParseDuration(seconds + "s"); limit < watchLimit || limit > 2*watchLimit {
						t.Errorf("the first watch lasts %v", limit)
					}
				}
				return resp, nil
			}}
		}
		m, err := New(ctx, o)
		if err != nil {
			t.Fatal(err)
		}
		first := m.api.Transport()
		timer := time.AfterFunc(time.Hour, cancel)
		var told []change
		if err := m.follow(ctx, feed{activity: "watch", handle: toSlice(&told)}); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); !timer.Stop() || took < limit+watchGrace {
			t.Errorf("the next watch begins after %v, and the first one had %v", took, limit)
		}
		if m.api.Transport() == first {
			t.Error("the connection is kept")
		}
	})
}
