package kube

import (
	"os"
	"path/filepath"
	"testing"
)

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
