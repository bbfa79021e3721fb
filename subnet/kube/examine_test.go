package kube

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Which proxy is asked is told before anything is sent, and without its password.
func TestProxy(t *testing.T) {
	for _, c := range []struct{ server, proxy, want string }{
		{"https://192.0.2.1:6443", "http://me:hunter2@proxy.example:3128", "http://me:xxxxx@proxy.example:3128"},
		{"https://127.0.0.1:6443", "", ""}, // whatever the environment of this test says, itself is not reached by a proxy
	} {
		path := filepath.Join(t.TempDir(), "kubeconfig")
		text := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: %q, proxy-url: %q}}]\ncontexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n", c.server, c.proxy)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := Proxy(Options{Kubeconfig: path}); err != nil || got != c.want {
			t.Errorf("%s: %q, %v; want %q", c.server, got, err, c.want)
		}
	}
	if _, err := Proxy(Options{Kubeconfig: filepath.Join(t.TempDir(), "none")}); err == nil {
		t.Error("no kubeconfig is no error")
	}
}

// A proxy that answers for the API server is not heard for it; neither is nobody.
func TestUnreachable(t *testing.T) {
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "<html>not from here</html>", http.StatusForbidden)
	}))
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	defer proxy.Close()
	for _, url := range []string{proxy.URL, gone.URL} {
		if _, err := Examine(t.Context(), Options{APIURL: url, NodeName: "n", Prefix: prefix}); err == nil || !Unreachable(err) {
			t.Errorf("%s: %v", url, err)
		}
	}
}

// examined asks as a person does who has flannel's own rights.
func examined(t *testing.T, o outside) {
	o.add("examined-1")
	kubeconfig, _ := o.Kubeconfig(o.Token("examined-1"), "")
	ask := func(name string) (Examination, error) {
		ctx, cancel := context.WithTimeout(t.Context(), soon)
		defer cancel()
		return Examine(ctx, Options{Kubeconfig: kubeconfig, NodeName: name, Prefix: prefix})
	}
	e, err := ask("examined-1")
	if err != nil || e.Node != "examined-1" || len(e.PodCIDRs) > 0 || e.Ahead.Abs() > time.Minute {
		t.Fatalf("a node without podCIDR on this machine's clock: %+v, %v", e, err)
	}
	o.assign("examined-1", "10.244.9.0/24")
	o.add("examined-windows")
	label := `{"metadata":{"labels":{"kubernetes.io/os":"windows"}}}`
	if _, err := o.Client.CoreV1().Nodes().Patch(t.Context(), "examined-windows", "application/merge-patch+json", []byte(label), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	e, err = ask("examined-1")
	if err != nil || !slices.Equal(e.PodCIDRs, []string{"10.244.9.0/24"}) || !slices.Contains(e.Windows, "examined-windows") {
		t.Errorf("%+v, %v", e, err)
	}
	if _, err := ask("examined-none"); !apierrors.IsNotFound(err) || Unreachable(err) {
		t.Errorf("a node that is not there: %v", err)
	}
	if _, err := ask(""); err == nil || !strings.Contains(err.Error(), "NODE_NAME") || Unreachable(err) {
		t.Errorf("no name: %v", err)
	}
}
