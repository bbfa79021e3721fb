package main

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestAPIServerIsTakenFromTheFirstKubeconfigThatNamesIt(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	kubeconfig := func(server string) string {
		return "apiVersion: v1\nkind: Config\nclusters: [{name: other, cluster: {server: \"https://192.0.2.9\"}}, {name: c, cluster: {server: \"" + server + "\"}}]\n" +
			"contexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n"
	}
	kubelet, kubeadm := file("kubelet.conf", kubeconfig("https://192.0.2.1:6443")), file("kubeconfig.conf", kubeconfig("https://192.0.2.2:6443"))
	empty, broken := file("empty", kubeconfig("")), file("broken", "{")
	absent := filepath.Join(dir, "absent")
	warned := []string{"kubeadm's", "with a user only", "not a URL"}
	for name, c := range map[string]struct {
		url  string
		from []string
		want string
	}{
		"nothing":             {"", nil, ""},
		"the flag":            {"https://192.0.2.3", []string{kubelet}, "https://192.0.2.3"},
		"kubelet's":           {"", []string{absent, kubelet, kubeadm}, "https://192.0.2.1:6443"},
		"kubeadm's":           {"", []string{absent, empty, broken, kubeadm}, "https://192.0.2.2:6443"},
		"with a user":         {"", []string{file("user", kubeconfig("https://u:p%40ss@192.0.2.4:6443/c@x"))}, "https://192.0.2.4:6443/c@x"},
		"with @ in the path":  {"", []string{file("path", kubeconfig("https://rancher/k8s/clusters/c@x"))}, "https://rancher/k8s/clusters/c@x"},
		"without a scheme":    {"", []string{file("scheme", kubeconfig("192.0.2.4:6443"))}, "192.0.2.4:6443"},
		"with a user only":    {"", []string{file("name", kubeconfig("u:hunter2@192.0.2.4:6443")), kubeadm}, "https://192.0.2.2:6443"},
		"not a URL":           {"", []string{file("escape", kubeconfig("https://u:hunter2%ss@192.0.2.4:6443")), kubeadm}, "https://192.0.2.2:6443"},
		"none of them has it": {"", []string{absent, empty}, ""},
	} {
		var log bytes.Buffer
		if got := apiServer(kubeOptions{APIURL: c.url, APIFrom: c.from}, slog.New(slog.NewTextHandler(&log, nil))); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if shown := log.String(); strings.Contains(shown, "hunter2") || (shown != "") != slices.Contains(warned, name) {
			t.Errorf("%s: the log has %q", name, shown)
		}
	}
}
