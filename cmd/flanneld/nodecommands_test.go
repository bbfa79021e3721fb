package main

import (
	"encoding/json"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"flannel/internal/test/logtest"
	"flannel/pkg/windows/node"
)

// kubernetesFile reads a source file of Kubernetes, which the lab builds.
func kubernetesFile(t *testing.T, module string, path ...string) string {
	t.Helper()
	cmd := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module)
	cmd.Dir = filepath.Join("..", "flannel-lab", "kube")
	dir, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(append([]string{strings.TrimSpace(string(dir))}, path...)...))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The flags that kube-proxy and kubelet get exist in their sources.
func TestKubernetesHasTheFlags(t *testing.T) {
	if runtime.GOOS == "windows" {
		return // the sources are read where they are built
	}
	const module = "k8s.io/kubernetes"
	proxy := (&proxyRun{kubeConfig: "c", nodeName: "n"}).own()
	for _, p := range []node.KubeProxy{{Network: "n", VIP: netip.MustParseAddr("10.244.1.2"), Cluster: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, Gates: []string{"A=true"}}, {Network: "n"}} {
		proxy = append(proxy, p.Flags()...)
	}
	count := 0
	for _, c := range []struct {
		flags  []string
		source string
	}{
		{proxy, kubernetesFile(t, module, "cmd", "kube-proxy", "app", "options.go") + kubernetesFile(t, module, "cmd", "kube-proxy", "app", "init_windows.go")},
		{append(kubeletFlags(nodeSettings{KubeletFeatureGates: "A=true"}, "c"), runtimeFlag(nil, "e")...),
			kubernetesFile(t, module, "cmd", "kubelet", "app", "options", "options.go") + kubernetesFile(t, module, "cmd", "kubelet", "app", "options", "osflags_windows.go")},
	} {
		for _, flag := range c.flags {
			name, _, _ := strings.Cut(strings.TrimPrefix(flag, "--"), "=")
			if count++; name != "v" && !strings.Contains(c.source, `, "`+name+`", `) && !strings.Contains(c.source, `"`+name+`",`) {
				t.Errorf("there is no flag --%s", name)
			}
		}
	}
	if count < 18 {
		t.Errorf("only %d flags", count)
	}
}

// kubelet's configuration has only fields of its API version.
func TestKubeletKnowsItsConfiguration(t *testing.T) {
	if runtime.GOOS == "windows" {
		return // likewise
	}
	types := kubernetesFile(t, "k8s.io/kubelet", "config", "v1beta1", "types.go")
	fields := func(of string) []string {
		_, below, ok := strings.Cut(types, "\ntype "+of+" struct {\n")
		if !ok {
			t.Fatalf("no type %s", of)
		}
		inside, _, _ := strings.Cut(below, "\n}\n")
		var all []string
		for _, m := range regexp.MustCompile("`json:\"(\\w+)").FindAllStringSubmatch(inside, -1) {
			all = append(all, m[1])
		}
		return all
	}
	ca := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(ca, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	raw, err := kubeletConfig(nodeSettings{ClientCA: ca, KubeDNSServiceIP: "10.96.0.10"})
	if err != nil {
		t.Fatal(err)
	}
	check := func(of string, raw json.RawMessage, known []string, least int) map[string]json.RawMessage {
		t.Helper()
		all := read[map[string]json.RawMessage](t, string(raw))
		for key := range all {
			if !slices.Contains(known, key) {
				t.Errorf("%s has no %s", of, key)
			}
		}
		if len(all) < least {
			t.Errorf("only %d fields of %s: %s", len(all), of, raw)
		}
		return all
	}
	config := check("KubeletConfiguration", raw, append(fields("KubeletConfiguration"), "apiVersion", "kind"), 9)
	authentication := check("KubeletAuthentication", config["authentication"], fields("KubeletAuthentication"), 1)
	check("KubeletX509Authentication", authentication["x509"], fields("KubeletX509Authentication"), 1)
	if raw, err = kubeletConfig(nodeSettings{ClientCA: ca + ".none"}); err != nil || strings.Contains(string(raw), "x509") {
		t.Errorf("without a CA: %s, %v", raw, err)
	}
}

// kubelet gets the container runtime by a flag if its configuration has none, as that of kubeadm.
func TestRuntimeOfKubelet(t *testing.T) {
	const endpoint = "npipe:////./pipe/c"
	written, err := kubeletConfig(nodeSettings{ContainerRuntimeEndpoint: endpoint})
	if err != nil {
		t.Fatal(err)
	}
	for config, named := range map[string]bool{
		string(written): true,
		"kind: KubeletConfiguration\ncontainerRuntimeEndpoint: npipe:////./pipe/other\n": true,
		"containerRuntimeEndpoint: \"npipe:////./pipe/other\" # set\r\n":                 true,
		`{"kind":"KubeletConfiguration","containerRuntimeEndpoint":"npipe://x"}`:         true,
		`{"containerRuntimeEndpoint":"","kind":"KubeletConfiguration"}`:                  false,
		"containerRuntimeEndpoint: \"\"\r\ncpuManagerReconcilePeriod: 0s\r\n":            false,
		"containerRuntimeEndpoint:\nkind: KubeletConfiguration\n":                        false,
		"containerRuntimeEndpoint: null\nkind: KubeletConfiguration\n":                   false,
		"containerRuntimeEndpoint: ~\n":                                                  false,
		`{"staticPodURL":"http://x/#y","containerRuntimeEndpoint":"npipe://x"}`:          true,
		"# containerRuntimeEndpoint: npipe:////./pipe/other\n":                           false,
		"kind: KubeletConfiguration\n":                                                   false,
	} {
		flag := runtimeFlag([]byte(config), endpoint)
		if named != (flag == nil) || !named && !slices.Equal(flag, []string{"--container-runtime-endpoint=" + endpoint}) {
			t.Errorf("kubelet gets %q with the configuration\n%s", flag, config)
		}
	}
}

func TestNodeCommandLines(t *testing.T) {
	for _, c := range []struct {
		args string
		code int
		want string // what either output names
	}{
		{"node", exitUsage, "start stop reset kube-proxy"}, {"node strt", exitUsage, `"strt" start`}, {"node start now", exitUsage, `"now"`},
		{"node start --help", exitOK, "--management-ip --kube-dns-service-ip 10.96.0.10 --force"}, {"node reset --help", exitOK, "--dry-run --base-dir"},
		{"node kube-proxy --help", exitOK, "--kube-config --health-port"}, {"node start --iface=x", exitUsage, "--iface"},
		{"--v=4 node start", exitUsage, "node --help"},
	} {
		if code, out, problems := flanneldSays(t.Context(), strings.Fields(c.args)...); code != c.code || !logtest.Names(out+problems, strings.Fields(c.want)...) {
			t.Errorf("flanneld %s ends with %d and says %s%s; want %q", c.args, code, out, problems, c.want)
		}
	}
	if runtime.GOOS == "windows" {
		return // where TestNodeSettings and others run them
	}
	for _, args := range []string{"start --management-ip=192.0.2.1", "stop", "reset", "kube-proxy --kube-config=c --node-name=n"} {
		if code, out, problems := flanneldSays(t.Context(), append([]string{"node"}, strings.Fields(args)...)...); code != exitError || out != "" || !logtest.Names(problems, "Windows") {
			t.Errorf("node %s ends with %d and says %s%s", args, code, out, problems)
		}
	}
}
