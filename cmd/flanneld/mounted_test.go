package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"flannel/pkg/file"
)

// Files that the manifest mounts are found below the root of a HostProcess container, if they are not at their paths.
func TestMountedFiles(t *testing.T) {
	root := t.TempDir()
	for _, path := range []string{"mounts/kube-flannel/net-conf.json", "mounts/kube-proxy/kubeconfig.conf", "certs/ca.crt"} {
		path = filepath.Join(root, filepath.FromSlash(path))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	at := systemPath // on Windows, on drive C:
	args := []string{"--kube-subnet-mgr", "--net-config-path=" + at("/mounts/kube-flannel/net-conf.json"), "--etcd-cafile=" + at("/certs/ca.crt"),
		"--kube-api-from=" + at("/k/config"), "--kube-api-from=" + at("/mounts/kube-proxy/kubeconfig.conf")}
	environ := []string{"NODE_NAME=worker1"}
	o, err := parseOptions(args, environ)
	if err != nil || o.Kube.NetConfPath != at("/mounts/kube-flannel/net-conf.json") {
		t.Errorf("elsewhere: %q, %v", o.Kube.NetConfPath, err)
	}
	o, err = parseOptions(args, append(environ, file.SandboxMount+"="+root+string(filepath.Separator)))
	want := []string{filepath.Join(root, "mounts", "kube-flannel", "net-conf.json"), filepath.Join(root, "certs", "ca.crt"), at("/k/config"), filepath.Join(root, "mounts", "kube-proxy", "kubeconfig.conf")}
	if got := append([]string{o.Kube.NetConfPath, o.Etcd.CAFile}, o.Kube.APIFrom...); err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v", got, err)
	}
}
