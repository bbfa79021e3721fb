package dist_test

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	"flannel/internal/test/kubetest"
	"flannel/internal/test/kubetest/cluster"
)

// helm runs one of Helm's actions with values.
func helm(t *testing.T, s *kubetest.Server, action, chart, values string) (notes string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, []byte(values), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := render(t, action, s.File("admin.kubeconfig"), chart, file)
	if err != nil {
		t.Fatalf("helm %s: %v\n%s", action, err, out)
	}
	return out
}

// userValues are values of flannel's chart, as in its users' files.
const userValues = `
podCidr: 10.42.0.0/16
global: {imagePullSecrets: [{name: pull}]}
flannel:
  image: {tag: v0.28.9}
  args: [--ip-masq, --kube-subnet-mgr, --iface=eth1]
  backendPort: 4789
  vni: 4096
  directRouting: true
  cniBinDir: /var/lib/cni/bin
  healthz: {port: 9081, livenessProbe: {periodSeconds: 7}}
  resources: {requests: {cpu: 200m}}
  nodeSelector: {pool: a}
  unknownToUs: 1
netpol: {enabled: true}
`

// A release of flannel's chart can be upgraded to ours in each of the ways that people use, and rolled back.
func TestHelmUpgradeFromFlannel(t *testing.T) {
	const former = "testdata/former-chart"
	s := kubetest.Start(t, kubetest.Bare())
	for name, c := range map[string]struct {
		installed, action, values string
		want                      appsv1.DaemonSetSpec // the parts that are compared
		args, netConf             string
		notes                     []string
	}{
		"reused defaults": {"", "upgrade-reusing-values", "", selecting("app"),
			"--healthz-ip=0.0.0.0 --healthz-port=8081 --ip-masq --kube-subnet-mgr",
			`{"Backend":{"MacPrefix":"0E-2A","Type":"vxlan"},"EnableNFTables":false,"Network":"10.244.0.0/16"}`, []string{"flannel.image", "flannel_cni"}},
		"reused values": {userValues, "upgrade-reusing-values", "", selecting("app"),
			"--healthz-ip=0.0.0.0 --healthz-port=9081 --ip-masq --kube-subnet-mgr --iface=eth1",
			`{"Backend":{"DirectRouting":true,"MacPrefix":"0E-2A","Port":4789,"Type":"vxlan","VNI":4096},"EnableNFTables":false,"Network":"10.42.0.0/16"}`, []string{"flannel.image"}},
		"a file of values": {userValues, "upgrade", userValues, selecting("app"),
			"--healthz-ip=0.0.0.0 --healthz-port=9081 --ip-masq --kube-subnet-mgr --iface=eth1",
			`{"Backend":{"Type":"vxlan"},"EnableNFTables":false,"Network":"10.42.0.0/16"}`, []string{"flannel.image"}},
		"no values": {"", "upgrade", "", selecting("app"), "--healthz-ip=127.0.0.1 --healthz-port=8471 --kube-subnet-mgr --ip-masq",
			`{"Backend":{"Type":"vxlan"},"EnableNFTables":false,"Network":"10.244.0.0/16"}`, nil},
		"a selector as the manifest's": {"flannel: {selector: {app: flannel, k8s-app: flannel}}", "upgrade", "", selecting("app", "k8s-app"),
			"--healthz-ip=127.0.0.1 --healthz-port=8471 --kube-subnet-mgr --ip-masq",
			`{"Backend":{"Type":"vxlan"},"EnableNFTables":false,"Network":"10.244.0.0/16"}`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			helm(t, s, "install", former, c.installed)
			defer func() {
				if out, err := render(t, "uninstall", s.File("admin.kubeconfig")); err != nil {
					t.Fatal(err, out)
				}
			}()
			notes := helm(t, s, c.action, "chart", c.values)
			for _, part := range c.notes {
				if !strings.Contains(notes, part) {
					t.Errorf("the notes do not name %s:\n%s", part, notes)
				}
			}
			set, err := s.Client.AppsV1().DaemonSets(cluster.Namespace).Get(t.Context(), "kube-flannel-ds", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			pod := set.Spec.Template.Spec
			if diff := cmp.Diff(c.want.Selector, set.Spec.Selector); diff != "" {
				t.Error("selector:", diff)
			}
			if got := strings.Join(pod.Containers[0].Args, " "); got != c.args {
				t.Errorf("arguments\n%s, want\n%s", got, c.args)
			}
			config, err := s.Client.CoreV1().ConfigMaps(cluster.Namespace).Get(t.Context(), "kube-flannel-cfg", metav1.GetOptions{})
			if err != nil || compact(t, config.Data["net-conf.json"]) != c.netConf {
				t.Errorf("network configuration %s, want %s, %v", compact(t, config.Data["net-conf.json"]), c.netConf, err)
			}
			nothingLeft(t, s, pod)
			if out, err := render(t, "rollback", s.File("admin.kubeconfig")); err != nil {
				t.Fatal(err, out)
			}
			set, err = s.Client.AppsV1().DaemonSets(cluster.Namespace).Get(t.Context(), "kube-flannel-ds", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			pod = set.Spec.Template.Spec
			if len(pod.Containers) != 1 || len(pod.InitContainers) != 2 || pod.Containers[0].Image != "ghcr.io/flannel-io/flannel:v0.28.9" {
				t.Errorf("after the rollback the pod is %+v", pod)
			}
		})
	}
}

func selecting(labels ...string) appsv1.DaemonSetSpec {
	match := map[string]string{}
	for _, l := range labels {
		match[l] = "flannel"
	}
	return appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: match}}
}

func compact(t *testing.T, text string) string {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Errorf("%v in %s", err, text)
	}
	out, _ := json.Marshal(v) // it was decoded
	return string(out)
}

// nothingLeft checks that everything of the former release that ours does not have is gone.
func nothingLeft(t *testing.T, s *kubetest.Server, pod corev1.PodSpec) {
	t.Helper()
	var names []string
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		if c.Name == "kube-network-policies" {
			continue
		}
		names = append(names, c.Name)
		if c.Image != "flanneld:dev" {
			t.Errorf("%s runs %s", c.Name, c.Image)
		}
		for _, e := range c.Env {
			if strings.HasPrefix(e.Name, "POD_") || e.Name == "EVENT_QUEUE_DEPTH" {
				t.Errorf("%s has the former %s", c.Name, e.Name)
			}
		}
	}
	if diff := cmp.Diff([]string{"install-cni", "kube-flannel", "keep-cni"}, names); diff != "" {
		t.Error("containers:", diff)
	}
	if _, err := s.Client.CoreV1().ConfigMaps(cluster.Namespace).Get(t.Context(), "leftover", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Error("the former release's other ConfigMap:", err)
	}
	if _, err := s.Client.AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(t.Context(), "flannel", metav1.GetOptions{}); err != nil {
		t.Error("the policy:", err)
	}
}

// Each value of flannel's chart has the effect that effects lists.
func TestChartTakesFlannelsValues(t *testing.T) {
	for values, want := range map[string]func(pod corev1.PodSpec, config map[string]any) any{
		"flannel: {image: {repository: example.com/flanneld, tag: v1}}":                                                                                          image,
		"flannel: {image: {repository: example.com/mirror/flannel-io/flannel, tag: v0.28.9}}":                                                                    image,
		"flannel: {backend: wireguard, backendPort: 1, backendPortv6: 2, mtu: 1300, psk: x, tunnelMode: auto, keepaliveInterval: 25, vni: 7}":                    backend,
		"flannel: {backend: vxlan, vni: 16777215, backendPort: 4789, mtu: 1400, GBP: true, directRouting: true, macPrefix: 0E-2A, psk: x, tunnelMode: separate}": backend,
		"flannel: {backend: host-gw, vni: 1, macPrefix: 0E-2A, tunnelMode: separate}":                                                                            backend,
		"flannel: {backend: vxlan, vni: '4096', mtu: '1400', backendPort: '0'}":                                                                                  backend,
		"flannel: {backend: wireguard, keepaliveInterval: '25', backendPort: '', psk: '1'}":                                                                      backend,
		"flannel: {backend: ipip, directRouting: true}":                                                                                                          backend,
		"flannel: {enableNFTables: true}": func(_ corev1.PodSpec, c map[string]any) any {
			return c["net-conf.json"].(map[string]any)["EnableNFTables"]
		},
		"flannel: {skipCNIConfigInstallation: true}":                                                    cniArgs,
		"flannel: {cniConf: {name: mine, plugins: [{type: flannel}]}}":                                  cniConf,
		"flannel: {cniConf: '{\"name\":\"text\",\"plugins\":[{\"type\":\"flannel\"}]}'}":                cniConf,
		"flannel: {healthz: {port: 0}}":                                                                 probes,
		"flannel: {healthz: {livenessProbe: false, readinessProbe: {httpGet: {path: /healthz}}}}":       probes,
		"flannel: {healthz: {livenessProbe: {exec: {command: [a]}}, readinessProbe: {enabled: false}}}": probes,
		"flannel: {tolerations: [{key: a}], nodeSelector: {a: b}, resources: {limits: {cpu: 2}}}":       placement,
		"netpol: {enabled: true, args: [/bin/netpol, --v=4], image: {repository: r, tag: t}}":           netpol,
		"netpol: {enabled: true}": netpol,
	} {
		text, err := chart(t, values)
		if err != nil {
			t.Errorf("%s: %v\n%s", values, err, text)
			continue
		}
		config := byName(t, text)["ConfigMap kube-flannel-cfg"]["data"].(map[string]any)
		got, err := json.Marshal(want(daemonSet(t, text).Spec.Template.Spec, config))
		if err != nil || string(got) != effects[values] {
			t.Errorf("%s: %v\n%s, want\n%s", values, err, got, effects[values])
		}
	}
}

var effects = map[string]string{
	"flannel: {image: {repository: example.com/flanneld, tag: v1}}":                                                                                          `"example.com/flanneld:v1"`,
	"flannel: {image: {repository: example.com/mirror/flannel-io/flannel, tag: v0.28.9}}":                                                                    `"flanneld:dev"`,
	"flannel: {backend: wireguard, backendPort: 1, backendPortv6: 2, mtu: 1300, psk: x, tunnelMode: auto, keepaliveInterval: 25, vni: 7}":                    `{"ListenPort":1,"ListenPortV6":2,"MTU":1300,"Mode":"auto","PSK":"x","PersistentKeepaliveInterval":25,"Type":"wireguard"}`,
	"flannel: {backend: vxlan, vni: 16777215, backendPort: 4789, mtu: 1400, GBP: true, directRouting: true, macPrefix: 0E-2A, psk: x, tunnelMode: separate}": `{"DirectRouting":true,"GBP":true,"MTU":1400,"MacPrefix":"0E-2A","Port":4789,"Type":"vxlan","VNI":16777215}`,
	"flannel: {backend: host-gw, vni: 1, macPrefix: 0E-2A, tunnelMode: separate}":                                                                            `{"Type":"host-gw"}`,
	"flannel: {backend: vxlan, vni: '4096', mtu: '1400', backendPort: '0'}":                                                                                  `{"MTU":1400,"Type":"vxlan","VNI":4096}`,
	"flannel: {backend: wireguard, keepaliveInterval: '25', backendPort: '', psk: '1'}":                                                                      `{"PSK":"1","PersistentKeepaliveInterval":25,"Type":"wireguard"}`,
	"flannel: {backend: ipip, directRouting: true}":                                                                                                          `{"DirectRouting":true,"Type":"ipip"}`,
	"flannel: {enableNFTables: true}":                                                               `true`,
	"flannel: {skipCNIConfigInstallation: true}":                                                    `["--plugin-from=/opt/flannel/cni/flannel","--plugin-to=/opt/cni/bin/flannel"]`,
	"flannel: {cniConf: {name: mine, plugins: [{type: flannel}]}}":                                  `"mine"`,
	"flannel: {cniConf: '{\"name\":\"text\",\"plugins\":[{\"type\":\"flannel\"}]}'}":                `"text"`,
	"flannel: {healthz: {port: 0}}":                                                                 `["--healthz-port=0",null,null]`,
	"flannel: {healthz: {livenessProbe: false, readinessProbe: {httpGet: {path: /healthz}}}}":       `["--healthz-port=8081",null,{"httpGet":{"path":"/healthz","port":8081},"timeoutSeconds":5,"periodSeconds":5}]`,
	"flannel: {healthz: {livenessProbe: {exec: {command: [a]}}, readinessProbe: {enabled: false}}}": `["--healthz-port=8081",{"exec":{"command":["a"]},"timeoutSeconds":5,"periodSeconds":20,"failureThreshold":6},null]`,
	"flannel: {tolerations: [{key: a}], nodeSelector: {a: b}, resources: {limits: {cpu: 2}}}":       `[[{"key":"a"}],{"a":"b","kubernetes.io/os":"linux"},{"limits":{"cpu":"2"}}]`,
	"netpol: {enabled: true, args: [/bin/netpol, --v=4], image: {repository: r, tag: t}}":           `["r:t",null,["/bin/netpol","--v=4"]]`,
	"netpol: {enabled: true}":                                                                       `["registry.k8s.io/networking/kube-network-policies:v0.9.1",["/bin/netpol"],["--hostname-override=$(MY_NODE_NAME)","--v=2"]]`,
}

func image(pod corev1.PodSpec, _ map[string]any) any { return pod.Containers[0].Image }
func backend(_ corev1.PodSpec, c map[string]any) any {
	return c["net-conf.json"].(map[string]any)["Backend"]
}
func cniArgs(pod corev1.PodSpec, _ map[string]any) any { return pod.Containers[1].Args }
func cniConf(_ corev1.PodSpec, c map[string]any) any {
	return c["cni-conf.json"].(map[string]any)["name"]
}
func probes(pod corev1.PodSpec, _ map[string]any) any {
	c := pod.Containers[0]
	return []any{c.Args[1], c.LivenessProbe, c.ReadinessProbe}
}
func placement(pod corev1.PodSpec, _ map[string]any) any {
	return []any{pod.Tolerations, pod.NodeSelector, pod.Containers[0].Resources}
}
func netpol(pod corev1.PodSpec, _ map[string]any) any {
	c := pod.Containers[2]
	return []any{c.Image, c.Command, c.Args}
}

// The probes ask where flanneld listens, also if arguments say it.
func TestChartProbesFollowArguments(t *testing.T) {
	for values, want := range map[string]struct{ args, host, port string }{
		"": {"--healthz-ip=127.0.0.1 --healthz-port=8471 --kube-subnet-mgr --ip-masq", "127.0.0.1", "8471"},
		"flannel: {args: [--kube-subnet-mgr, --healthz-port=8080]}":                     {"--healthz-ip=127.0.0.1 --healthz-port=8080 --kube-subnet-mgr", "127.0.0.1", "8080"},
		"flannel: {args: [-healthz-port=1, -healthz-ip=192.0.2.1], healthz: {port: 9}}": {"--healthz-ip=192.0.2.1 --healthz-port=1", "192.0.2.1", "1"},
		"args: [--healthz-port=1, --healthz-port=2, --v=4]":                             {"--healthz-ip=127.0.0.1 --healthz-port=2 --kube-subnet-mgr --ip-masq --v=4", "127.0.0.1", "2"},
		"args: [--healthz-ip=0.0.0.0]":                                                  {"--healthz-ip=0.0.0.0 --healthz-port=8471 --kube-subnet-mgr --ip-masq", "", "8471"},
		"args: [--healthz-ip=$(NODE_IP)]":                                               {"--healthz-ip=$(NODE_IP) --healthz-port=8471 --kube-subnet-mgr --ip-masq", "", "8471"},
		"args: ['--healthz-ip=::']":                                                     {"--healthz-ip=:: --healthz-port=8471 --kube-subnet-mgr --ip-masq", "", "8471"},
		"args: [--healthz-port=0]":                                                      {"--healthz-ip=127.0.0.1 --healthz-port=0 --kube-subnet-mgr --ip-masq", "", ""},
	} {
		c := daemonSet(t, mustChart(t, values)).Spec.Template.Spec.Containers[0]
		if got := strings.Join(c.Args, " "); got != want.args {
			t.Errorf("%q: arguments\n%s, want\n%s", values, got, want.args)
		}
		for _, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe} {
			if p == nil {
				p = &corev1.Probe{}
			}
			if get := p.HTTPGet; (get == nil) != (want.port == "") || get != nil && (get.Host != want.host || get.Port.String() != want.port) {
				t.Errorf("%q: a probe asks %v, want host %q and port %q", values, get, want.host, want.port)
			}
		}
	}
}

// _defaults.tpl, for upgrades that do not read values.yaml, is a copy of it.
func TestChartDefaultsAreTheSameTwice(t *testing.T) {
	own := read(t, "chart", "values.yaml")
	again := read(t, "chart", "templates", "_defaults.tpl")
	begin, end := strings.Index(again, "-}}\n"), strings.LastIndex(again, "\n{{-")
	want, got := objects(t, own), objects(t, again[begin+4:end])
	if len(want) != 1 || len(got) != 1 {
		t.Fatal(len(want), len(got))
	}
	if diff := cmp.Diff(want[0].Object, got[0].Object); diff != "" {
		t.Error("values.yaml (-) and _defaults.tpl (+) differ:\n", diff)
	}
	if keys := slices.Sorted(maps.Keys(want[0].Object)); !slices.Contains(keys, "annotationPrefix") {
		t.Error("annotationPrefix, by which templates recognize that defaults are set, is missing:", keys)
	}
}

// The documented command to apply the manifest over a running flannel applies all of it but the configuration.
func TestUpgradeKeepsConfiguration(t *testing.T) {
	selector, err := labels.Parse(find(t, read(t, "..", "Documentation", "upgrade.md"), `kubectl apply -f - -l '(.*)'`))
	if err != nil {
		t.Fatal(err)
	}
	all := objects(t, manifest(t))
	without := slices.DeleteFunc(slices.Clone(all), func(o *unstructured.Unstructured) bool { return selector.Matches(labels.Set(o.GetLabels())) })
	if len(without) != 1 || without[0].GetKind() != "ConfigMap" || len(all) < 5 {
		t.Errorf("of %d objects it does not apply %v", len(all), without)
	}
}
