// Package dist_test tests the manifests, the kustomize base, the chart, the Dockerfile of the images for Windows, the
// systemd unit and the scripts for Windows, where it matters with a real API server.
package dist_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"flannel/internal/test/kubetest"
	"flannel/internal/test/kubetest/cluster"
	"flannel/internal/test/nettest"
)

func TestMain(m *testing.M) { os.Exit(kubetest.Main(m)) }

// values are values of the chart that users set, by the name of the test.
var values = map[string]string{
	"none":        "",
	"dual":        "podCidrv6: fd00:10:244::/56\nnetConf: {SubnetLen: 25}\n",
	"IPv6 only":   "podCidr: ''\npodCidrv6: fd00:10:244::/56\nbackend: {Type: host-gw}\n",
	"vxlan":       "backend: {Type: vxlan, VNI: 4096, Port: 4789, DirectRouting: true}\nnftables: true\n",
	"metrics":     "metrics: {expose: true}\n",
	"udp":         "backend: {Type: udp}\n",
	"privileged":  "privileged: true\n",
	"SELinux":     "seLinuxOptions: {type: spc_t, level: s0}\n",
	"no policy":   "admissionPolicy: false\n",
	"own prefix":  "annotationPrefix: example.com/net-\n",
	"API address": "apiServer: {host: 192.0.2.1, port: 6443}\nargs: [--iface=eth1, --v=4]\nenv: [{name: A, value: b}]\n",
	"flannel's":   userValues,
	"elsewhere": `
image: {repository: registry.example.com/flannel, tag: v1, pullPolicy: Always}
imagePullSecrets: [{name: pull}]
nodeSelector: {pool: a}
tolerations: []
affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: edge, operator: DoesNotExist}]}]}}}
updateStrategy: {type: OnDelete}
podAnnotations: {a: b}
resources: {}
healthPort: 9000
cniBinDir: /var/lib/cni/bin
cniConfDir: /var/lib/cni/conf
`,
}

// refused are values that the chart refuses, with a part of the error.
var refused = map[string]string{
	"podCidr: ''\n":                          "podCidr or podCidrv6",
	"podCIDR: 10.0.0.0/8\n":                  "podCIDR", // misspelt
	"podCidr: 10.0.0.0\n":                    "podCidr",
	"annotationPrefix: example.com\n":        "annotationPrefix",
	"metrics: {podMonitor: {interval: 5}}\n": "interval",
	"healthPort: 0\n":                        "healthPort",
	"seLinuxOptions: {typ: spc_t}\n":         "typ",
	"flannel: {mtu: 1400 bytes}\n":           "mtu",
	"flannel: {healthz: {port: http}}\n":     "port",
	"flannel: {vni: '0100'}\n":               "vni", // would be 64
	"flannel: {healthz: {port: '08080'}}\n":  "port",
	"args: [--healthz-port, '8080']\n":       "--healthz-port",
	"args: [--healthz-port=08080]\n":         "--healthz-port=08080",
	"args: [--healthz-port=$(PORT)]\n":       "--healthz-port=$(PORT)", // the probes cannot follow it
}

func render(t *testing.T, args ...string) (string, error) {
	t.Helper()
	out, err := exec.Command(nettest.Tool(t, "render"), args...).CombinedOutput()
	return string(out), err
}

func chart(t *testing.T, values string) (string, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, []byte(values), 0o600); err != nil {
		t.Fatal(err)
	}
	return render(t, "chart", "chart", file)
}

func objects(t *testing.T, text string) []*unstructured.Unstructured {
	t.Helper()
	all, err := cluster.Objects([]byte(text))
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return all
}

func manifest(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "Documentation", "kube-flannel.yml"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// byName indexes objects by kind and name. JSON in ConfigMaps is parsed.
func byName(t *testing.T, text string) map[string]map[string]any {
	t.Helper()
	all := map[string]map[string]any{}
	for _, o := range objects(t, text) {
		if data, ok, _ := unstructured.NestedMap(o.Object, "data"); ok {
			for key, value := range data {
				var parsed any
				if err := json.Unmarshal([]byte(value.(string)), &parsed); err != nil {
					t.Errorf("%s of %s: %v", key, o.GetName(), err)
				}
				data[key] = parsed
			}
			o.Object["data"] = data
		}
		all[o.GetKind()+" "+o.GetName()] = o.Object
	}
	return all
}

// The manifest is for kubectl, the chart for Helm. They describe the same objects.
func TestChartAndManifestAreTheSame(t *testing.T) {
	text, err := chart(t, "")
	if err != nil {
		t.Fatal(err, text)
	}
	want := byName(t, manifest(t))
	delete(want, "Namespace kube-flannel") // helm install --create-namespace
	got := byName(t, text)
	// A selector cannot be changed, so each is the one of flannel's chart or manifest.
	const set = "DaemonSet kube-flannel-ds"
	selector := got[set]["spec"].(map[string]any)["selector"]
	if diff := cmp.Diff(map[string]any{"matchLabels": map[string]any{"app": "flannel"}}, selector); diff != "" {
		t.Error("the chart's selector:", diff)
	}
	selector = want[set]["spec"].(map[string]any)["selector"]
	if diff := cmp.Diff(map[string]any{"matchLabels": map[string]any{"app": "flannel", "k8s-app": "flannel"}}, selector); diff != "" {
		t.Error("the manifest's selector:", diff)
	}
	got[set]["spec"].(map[string]any)["selector"] = selector
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error("manifest (-) and chart (+) differ:\n", diff)
	}
	text, err = render(t, "kustomization", filepath.Join("..", "Documentation"))
	if err != nil {
		t.Fatal(err, text)
	}
	if diff := cmp.Diff(byName(t, manifest(t)), byName(t, text)); diff != "" {
		t.Error("manifest (-) and kustomization (+) differ:\n", diff)
	}
}

func TestChartRefusesImpossibleValues(t *testing.T) {
	for text, want := range refused {
		out, err := chart(t, text)
		if err == nil || !strings.Contains(out, want) {
			t.Errorf("%s: %v %s; want %q", text, err, out, want)
		}
	}
}

// emptyCluster returns a cluster with nothing but the namespace.
func emptyCluster(t *testing.T) *kubetest.Server {
	t.Helper()
	s := kubetest.Start(t, kubetest.Bare())
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: cluster.Namespace}}
	if _, err := s.Client.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return s
}

// The API server validates every object and refuses unknown fields.
func TestServerAcceptsAllManifests(t *testing.T) {
	s := emptyCluster(t)
	accept := func(name, text string) {
		t.Run(name, func(t *testing.T) {
			all := objects(t, text)
			if len(all) < 5 {
				t.Fatalf("only %d objects in\n%s", len(all), text)
			}
			for _, o := range all {
				if err := s.Apply(t.Context(), true, o); err != nil {
					t.Error(err)
				}
			}
		})
	}
	accept("manifest", manifest(t))
	for name, v := range values {
		text, err := chart(t, v)
		if err != nil {
			t.Error(name, err, text)
			continue
		}
		accept("chart: "+name, text)
	}
	bad := strings.Replace(manifest(t), "hostNetwork", "hostNetwrk", 1)
	for _, o := range objects(t, bad) {
		if o.GetKind() == "DaemonSet" && s.Apply(t.Context(), true, o) == nil {
			t.Error("the server accepts an unknown field, so this test proves nothing")
		}
	}
}

// All containers inherit the pod's SELinux context, which is not set by default.
func TestChartSELinuxOptions(t *testing.T) {
	for given, want := range map[string]*corev1.SELinuxOptions{
		"netpol: {enabled: true}\n":                     nil,
		"netpol: {enabled: true}\n" + values["SELinux"]: {Type: "spc_t", Level: "s0"},
	} {
		text, err := chart(t, given)
		if err != nil {
			t.Fatal(err, text)
		}
		pod := daemonSet(t, text).Spec.Template.Spec
		if diff := cmp.Diff(want, pod.SecurityContext.SELinuxOptions); diff != "" {
			t.Errorf("%q, the pod's context: want (-) and got (+) differ:\n%s", given, diff)
		}
		for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
			if c.SecurityContext.SELinuxOptions != nil {
				t.Errorf("%q: %s replaces the pod's context by %v", given, c.Name, c.SecurityContext.SELinuxOptions)
			}
		}
	}
}

// The API server's address and the pull policy apply to the container of netpol as to that of flanneld.
func TestChartNetpolHasTheAPIAddress(t *testing.T) {
	text, err := chart(t, "netpol: {enabled: true}\napiServer: {host: 192.0.2.1, port: 6443}\nimage: {pullPolicy: Always}\n")
	if err != nil {
		t.Fatal(err, text)
	}
	checked := 0
	for _, c := range daemonSet(t, text).Spec.Template.Spec.Containers {
		if c.Name != "kube-flannel" && c.Name != "kube-network-policies" {
			continue
		}
		checked++
		for _, want := range []corev1.EnvVar{{Name: "KUBERNETES_SERVICE_HOST", Value: "192.0.2.1"}, {Name: "KUBERNETES_SERVICE_PORT", Value: "6443"}} {
			if !slices.Contains(c.Env, want) {
				t.Errorf("%s has the environment %v, want %v in it", c.Name, c.Env, want)
			}
		}
		if c.ImagePullPolicy != corev1.PullAlways {
			t.Errorf("%s has the pull policy %q", c.Name, c.ImagePullPolicy)
		}
	}
	if checked != 2 {
		t.Errorf("%d of 2 containers in\n%s", checked, text)
	}
}

// The network configuration that the chart writes.
func TestChartNetConf(t *testing.T) {
	for name, want := range map[string]string{
		"none":      `{"Backend":{"Type":"vxlan"},"EnableNFTables":false,"Network":"10.244.0.0/16"}`,
		"dual":      `{"Backend":{"Type":"vxlan"},"EnableIPv6":true,"EnableNFTables":false,"IPv6Network":"fd00:10:244::/56","Network":"10.244.0.0/16","SubnetLen":25}`,
		"IPv6 only": `{"Backend":{"Type":"host-gw"},"EnableIPv4":false,"EnableIPv6":true,"EnableNFTables":false,"IPv6Network":"fd00:10:244::/56"}`,
		"vxlan":     `{"Backend":{"DirectRouting":true,"Port":4789,"Type":"vxlan","VNI":4096},"EnableNFTables":true,"Network":"10.244.0.0/16"}`,
	} {
		text, err := chart(t, values[name])
		if err != nil {
			t.Fatal(err, text)
		}
		data := byName(t, text)["ConfigMap kube-flannel-cfg"]["data"].(map[string]any)
		got, err := json.Marshal(data["net-conf.json"])
		if err != nil || string(got) != want {
			t.Errorf("%s: %v\n%s, want\n%s", name, err, got, want)
		}
		check := exec.Command(nettest.Tool(t, "flanneld"), "check-config", "--os=linux", "-")
		check.Stdin = bytes.NewReader(got)
		if out, err := check.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}
