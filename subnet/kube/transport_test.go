package kube

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"flannel/internal/test/logtest"
)

// A watch is logged when it begins, not as a GET that never ends, and a long query is cut.
func TestWatchIsLogged(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	t.Cleanup(srv.Close)
	var log logtest.Log
	c, err := newClient(Options{APIURL: srv.URL, Log: log.Debug()})
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL+"/api/v1/nodes?watch=true&fieldSelector="+strings.Repeat("x", 1000), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if lines := log.With("verb=WATCH", "result=200 OK"); len(lines.Naming("object", "/api/v1/nodes?watch=true")) != 1 || len(lines[0]["object"]) > 200 {
		t.Errorf("log:\n%s", &log)
	}
}

// A changed kubeconfig that cannot be used is logged once, until the former one is back. One that is being replaced is not.
func TestReload(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	step := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	write := func(text string) { t.Helper(); step(os.WriteFile(path, []byte(text), 0o600)) }
	const former = `clusters: [{name: c, cluster: {server: "https://192.0.2.1"}}]
contexts: [{name: x, context: {cluster: c}}]
current-context: x
`
	write(former)
	var log logtest.Log
	c, err := newClient(Options{Kubeconfig: path, Log: log.Logger()})
	step(err)
	said := func(times int) {
		t.Helper()
		for range 2 {
			c.reload()
		}
		if len(log.With("level=WARN").Naming("file", path)) != times || log.Count("level=INFO") > 0 {
			t.Errorf("log:\n%s", &log)
		}
	}
	write("")
	said(0)
	step(os.Remove(path))
	said(0)
	step(os.Mkdir(path, 0o700)) // cannot be read
	said(1)
	step(os.Remove(path))
	write(former)
	said(1)
	step(os.Remove(path))
	step(os.Mkdir(path, 0o700))
	said(2)
}
