package main

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
)

// TestKubeadmKubeconfig reads kubeadm's kubeconfig of kube-proxy as every client of Kubernetes does: to Windows its
// paths are no whole ones, so the files must be in the volume of kube-proxy-windows.yml, from the kubeconfig's directory on.
func TestKubeadmKubeconfig(t *testing.T) {
	const account = "/var/run/secrets/kubernetes.io/serviceaccount/"
	dir := t.TempDir()
	write := func(path, text string) {
		t.Helper()
		path = filepath.Join(dir, filepath.FromSlash(path))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("kubeconfig.conf", "apiVersion: v1\nkind: Config\nclusters: [{name: default, cluster: {server: \"https://192.0.2.1:6443\", certificate-authority: "+account+"ca.crt}}]\n"+
		"contexts: [{name: default, context: {cluster: default, user: default}}]\nusers: [{name: default, user: {tokenFile: "+account+"token}}]\ncurrent-context: default\n")
	manifest, err := os.ReadFile("../../Documentation/kube-proxy-windows.yml")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range regexp.MustCompile(`(?m)^ +path: (var/\S+)$`).FindAllSubmatch(manifest, -1) {
		write(string(path[1]), filepath.Base(string(path[1])))
	}
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "kubeconfig.conf"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{config.CAFile, config.BearerTokenFile} {
		if raw, err := os.ReadFile(file); err != nil || string(raw) != filepath.Base(file) {
			t.Errorf("%s says %q, %v", file, raw, err)
		}
	}
}
