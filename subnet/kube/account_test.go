package kube

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"flannel/pkg/conf"
)

// No error quotes a URL of a kubeconfig with a password, which may be what is wrong about the URL. The error says what is wrong
// otherwise: words are in it.
func TestKubeconfigHidesPasswords(t *testing.T) {
	for name, c := range map[string]struct {
		cluster, apiURL string
		words           []string
	}{
		"escape in the proxy":   {cluster: `proxy-url: "http://u:hunter2%ss@192.0.2.1:3128", server: "https://192.0.2.2"`, words: []string{"proxy-url", `"c"`, "percent-encode"}},
		"scheme of the proxy":   {cluster: `proxy-url: "htp://u:hunter2@192.0.2.1:3128", server: "https://192.0.2.2"`, words: []string{"proxy-url", `"c"`, "scheme", "socks5"}},
		"quotes in the proxy":   {cluster: `proxy-url: "http://u:hunter2\"%@192.0.2.1:3128", server: "https://192.0.2.2"`, words: []string{"proxy-url", `"c"`, "percent-encode"}},
		"beside another fault":  {cluster: `proxy-url: "htp://u:hunter2@192.0.2.1:3128", server: "https://192.0.2.2", certificate-authority: /absent`, words: []string{"proxy-url", "/absent"}},
		"slash in the server":   {cluster: `server: "https://u:hunter2/x@192.0.2.1:6443"`, words: []string{"server", `"c"`, "percent-encode"}},
		"server without scheme": {cluster: `server: "u:hunter2/x@192.0.2.1:6443"`, words: []string{"server", "port"}},
		"hash in the server":    {cluster: `server: "https://u:hunter2#x@192.0.2.1:6443"`, words: []string{"server", "percent-encode"}},
		"hash, without scheme":  {cluster: `server: "u:hunter2#x@192.0.2.1:6443"`, words: []string{"server", "port", "percent-encode"}},
		"the flag":              {cluster: `server: "https://192.0.2.2"`, apiURL: "u:hunter2%ss@192.0.2.1:6443", words: []string{"server", "percent-encode"}},
	} {
		path := filepath.Join(t.TempDir(), "kubeconfig")
		text := "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {" + c.cluster + "}}]\n" +
			"contexts: [{name: x, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\ncurrent-context: x\n"
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		o := Options{Kubeconfig: path, APIURL: c.apiURL}
		_, err := NetConf(t.Context(), "a/b", o)
		_, proxyErr := Proxy(o)
		for _, err := range []error{err, proxyErr} {
			if err == nil || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%s: %v", name, err)
				continue
			}
			for _, word := range append(c.words, conf.Redacted) {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("%s: %v, without %s", name, err, word)
				}
			}
		}
	}
}

// In a HostProcess container of a Windows without bindfltapi.dll, the service account is below the container's root.
func TestServiceAccountBelowRoot(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "var", "run", "secrets", "kubernetes.io", "serviceaccount")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"token", "ca.crt"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
	t.Setenv("KUBERNETES_SERVICE_PORT", "443")
	t.Setenv("CONTAINER_SANDBOX_MOUNT_POINT", "")
	if cfg, err := (Options{}).restConfig(); err == nil {
		t.Errorf("without the variable: %+v", cfg)
	}
	t.Setenv("CONTAINER_SANDBOX_MOUNT_POINT", root)
	for _, o := range []Options{{}, {APIURL: "https://[fd00::1]:443"}} {
		cfg, err := o.restConfig()
		if err != nil {
			t.Fatal(err)
		}
		if cfg.Host != "https://[fd00::1]:443" || cfg.BearerToken != "token" || cfg.BearerTokenFile != filepath.Join(dir, "token") || cfg.CAFile != filepath.Join(dir, "ca.crt") {
			t.Errorf("%+v", cfg)
		}
	}
}
