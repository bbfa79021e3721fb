package kube

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"flannel/internal/test/logtest"
)

// At the debug level each request is a line with verb, path and result, and without what is sent and received.
func TestRequestsAreLogged(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"apiVersion":"v1","kind":"ConfigMap","data":{"net-conf.json":"secret"}}`))
	}))
	t.Cleanup(srv.Close)
	var log, quiet logtest.Log
	ask := func(o Options) {
		if _, err := NetConf(t.Context(), "kube-flannel/conf", o); err != nil && o.APIURL == srv.URL {
			t.Fatal(err)
		}
	}
	ask(Options{APIURL: srv.URL, Log: log.Debug()})
	ask(Options{APIURL: srv.URL, Log: quiet.Logger()})
	ask(Options{APIURL: srv.URL})
	ask(Options{APIURL: "http://127.0.0.1:1", Log: log.Debug()})
	const path = "object=/api/v1/namespaces/kube-flannel/configmaps/conf"
	lines := log.With("level=DEBUG", "verb=GET", path)
	if len(lines) != 2 || lines[0]["result"] != "200 OK" || lines[0]["took"] == "" || !logtest.Names(lines[1]["result"], "127.0.0.1:1") {
		t.Errorf("two requests:\n%s", &log)
	}
	if quiet.Count() != 0 || strings.Contains(log.String(), "secret") {
		t.Errorf("without -v=4:\n%s\nwith it:\n%s", &quiet, &log)
	}
}
