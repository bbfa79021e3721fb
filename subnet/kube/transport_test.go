package kube

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"flannel/internal/test/logtest"
)

// A watch is logged when it begins, not as a GET that never ends, and a long query is cut.
func TestWatchIsLogged(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	t.Cleanup(srv.Close)
	r, err := newReconnector(&rest.Config{Host: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	var log logtest.Log
	r.log = log.Debug()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL+"/api/v1/nodes?watch=true&fieldSelector="+strings.Repeat("x", 1000), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := r.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if lines := log.With("verb=WATCH", "result=200 OK"); len(lines.Naming("object", "/api/v1/nodes?watch=true")) != 1 || len(lines[0]["object"]) > 200 {
		t.Errorf("log:\n%s", &log)
	}
}
