package dist_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"flannel/internal/test/kubetest"
)

const (
	windowsValues = "windows: {enabled: true}\nbackend: {Type: vxlan, VNI: 4096, Port: 4789}\n"
	hostGWValues  = "windows: {enabled: true}\nbackend: {Type: host-gw}\n"
)

// windowsManifests are for both overlay and host-gw, depending on the network configuration.
var windowsManifests = []string{"kube-flannel-windows", "kube-proxy-windows"}

func document(t *testing.T, name string) string {
	t.Helper()
	return read(t, "..", "Documentation", name+".yml")
}

func TestChartAndWindowsManifestAreTheSame(t *testing.T) {
	for _, values := range []string{windowsValues, hostGWValues} {
		text, err := chart(t, values)
		if err != nil {
			t.Fatal(err, text)
		}
		const name = "DaemonSet kube-flannel-ds-windows-amd64"
		if diff := cmp.Diff(byName(t, document(t, "kube-flannel-windows"))[name], byName(t, text)[name]); diff != "" {
			t.Errorf("%s: manifest (-) and chart (+) differ:\n%s", values, diff)
		}
	}
	text, err := chart(t, "")
	if err != nil || strings.Contains(text, "windows") {
		t.Errorf("the chart has objects for Windows by default: %v", err)
	}
}

// What replaces plugins has to be asked for, everywhere alike.
func TestChartReplacesPluginsWhenTold(t *testing.T) {
	for values, want := range map[string]int{windowsValues: 0, windowsValues + "replaceCniPlugin: true\n": 4} {
		text, err := chart(t, values)
		if err != nil {
			t.Fatal(err, text)
		}
		if n := strings.Count(text, "- --replace-plugin\n") + strings.Count(text, "- --cni-plugin-replace\n"); n != want {
			t.Errorf("%q: %d containers replace plugins, want %d", values, n, want)
		}
	}
}

func TestServerAcceptsWindowsManifests(t *testing.T) {
	s := kubetest.Start(t)
	for _, name := range windowsManifests {
		text := document(t, name)
		for _, o := range objects(t, text) {
			if err := s.Apply(t.Context(), true, o); err != nil {
				t.Error(name, err)
			}
		}
		bad := strings.Replace(text, "hostProcess", "hostProces", 1)
		for _, o := range objects(t, bad) {
			if err := s.Apply(t.Context(), true, o); err == nil || !strings.Contains(err.Error(), "hostProces:") {
				t.Errorf("the server accepts an unknown field, so this test proves nothing: %v", err)
			}
		}
	}
	s = emptyCluster(t)
	for name, values := range map[string]string{
		"overlay": windowsValues, "host-gw": hostGWValues,
		"all": `
podCidrv6: fd00:10:244::/56
backend: {Type: host-gw, Name: net0}
annotationPrefix: example.com/net-
apiServer: {host: 192.0.2.1, port: 6443}
image: {pullPolicy: Always}
imagePullSecrets: [{name: pull}]
podAnnotations: {a: b}
windows: {enabled: true, args: [--v=4], dns: [10.96.0.10], serviceCidr: '10.96.0.0/12,fd00::/108', nodeSelector: {kubernetes.io/os: windows, node.kubernetes.io/windows-build: 10.0.20348},
  image: {repository: r, tag: t}, cniBinDir: 'D:\cni\bin', cniConfDir: 'D:\cni\conf'}
`,
	} {
		text, err := chart(t, values)
		if err != nil {
			t.Fatal(name, err, text)
		}
		for _, o := range objects(t, text) {
			if err := s.Apply(t.Context(), true, o); err != nil {
				t.Error(name, err)
			}
		}
	}
}

// The cleanup runs on the nodes of both systems: on Windows in the same way as flanneld, which has the rights for HNS.
func TestCleanupOnWindows(t *testing.T) {
	text := document(t, "kube-flannel-cleanup")
	s := emptyCluster(t)
	for _, o := range objects(t, text) {
		if err := s.Apply(t.Context(), true, o); err != nil {
			t.Error(err)
		}
	}
	pods := func(object map[string]any) (spec, program map[string]any) {
		t.Helper()
		spec, _, err := unstructured.NestedMap(object, "spec", "template", "spec")
		if err != nil || spec == nil {
			t.Fatalf("no pods in %v: %v", object, err)
		}
		first := spec["initContainers"].([]any)[0].(map[string]any)
		return spec, map[string]any{"image": first["image"], "command": first["command"]}
	}
	const cleanup, daemon = "kube-flannel-cleanup-windows", "kube-flannel-ds-windows-amd64"
	spec, program := pods(byName(t, text)["DaemonSet "+cleanup])
	want, flanneld := pods(byName(t, document(t, "kube-flannel-windows"))["DaemonSet "+daemon])
	if diff := cmp.Diff(flanneld, program); diff != "" {
		t.Errorf("flanneld (-) and its cleanup (+) are different programs:\n%s", diff)
	}
	for _, field := range []string{"hostNetwork", "nodeSelector", "securityContext", "tolerations"} {
		if diff := cmp.Diff(want[field], spec[field]); diff != "" {
			t.Errorf("%s of flanneld (-) and its cleanup (+):\n%s", field, diff)
		}
	}
	if args := spec["initContainers"].([]any)[0].(map[string]any)["args"]; !cmp.Equal(args, []any{"cleanup"}) {
		t.Errorf("the arguments are %v", args)
	}
	_, page, _ := strings.Cut(read(t, "..", "Documentation", "upgrade.md"), "\n## Remove flanneld from Kubernetes\n")
	for _, name := range []string{cleanup, daemon} {
		if !strings.Contains(page, "`"+name+"`") {
			t.Errorf("upgrade.md does not say what to do with %s", name)
		}
	}
}

func TestChartRefusesWhatWindowsCannot(t *testing.T) {
	for values, want := range map[string]string{
		"windows: {enabled: true}\n":                                                                         "VNI", // of the default
		"windows: {enabled: true}\nbackend: {Type: vxlan, VNI: 4096}\n":                                      "Port",
		"windows: {enabled: true}\nbackend: {Type: vxlan, VNI: 4096, Port: 4789, DirectRouting: true}\n":     "DirectRouting",
		"windows: {enabled: true}\nbackend: {Type: wireguard}\n":                                             "wireguard",
		"windows: {enabled: true, serviceCidr: 10.96.0.0}\nbackend: {Type: vxlan, VNI: 4096, Port: 4789}\n":  "serviceCidr",
		"windows: {enabled: true, cniBinDir: /opt/cni/bin}\nbackend: {Type: vxlan, VNI: 4096, Port: 4789}\n": "cniBinDir",
		"windows: {enabled: true, args: [--healthz-port=9000]}\nbackend: {Type: host-gw}\n":                  "--healthz-port=9000",
		"windows: {enabled: true, args: [--healthz-ip, 0.0.0.0]}\nbackend: {Type: host-gw}\n":                "--healthz-ip",
		"windows: {enabled: true, args: [-kube-annotation-prefix=x]}\nbackend: {Type: host-gw}\n":            "-kube-annotation-prefix=x",
	} {
		if out, err := chart(t, values); err == nil || !strings.Contains(out, want) {
			t.Errorf("%s: %v %s; want %q", values, err, out, want)
		}
	}
}

// The manifests use the images' paths. The images are made of what make windows-zip collects, and download nothing
// without a checksum.
func TestWindowsDockerfile(t *testing.T) {
	out, err := render(t, "dockerfile", "windows/Dockerfile")
	if err != nil {
		t.Fatal(out)
	}
	stages := parseStages(t, out)
	if len(stages) != 2 || stages[0].Base != "${HOST_PROCESS}" || stages[1].Base != "${HOST_PROCESS}" {
		t.Fatalf("want two images for HostProcess containers: %+v", stages)
	}
	for _, s := range stages {
		for _, add := range s.all("ADD") {
			if !strings.Contains(add, "--checksum=sha256:") {
				t.Errorf("a download without a checksum: %s", add)
			}
		}
		// Stages for Windows cannot run programs on the builder.
		if ran := s.all("RUN"); len(ran) > 0 {
			t.Errorf("%s: it runs %q", s.Name, ran)
		}
	}
	for i, paths := range [][]string{{"/flanneld.exe", "/cni/"}, {"/kube-proxy.exe", "/flanneld.exe", "kube-proxy.ps1"}} {
		for _, path := range paths {
			if has := strings.Join(slices.Concat(stages[i].all("COPY"), stages[i].all("ADD")), "\n"); !strings.Contains(has, path) {
				t.Errorf("%s has no %s", stages[i].Name, path)
			}
		}
	}
}

// TestNoFixedRoot: without bindfltapi.dll, the image of a HostProcess container is not at C:\hpc. containerd replaces the
// variable in commands.
func TestNoFixedRoot(t *testing.T) {
	files := []string{"../Documentation/kube-flannel-windows.yml", "../Documentation/kube-proxy-windows.yml", "chart/templates/windows.yaml",
		"windows/Dockerfile", "../Documentation/windows-quickstart.md"}
	for _, name := range files {
		raw, err := os.ReadFile(filepath.FromSlash(name))
		if err != nil {
			t.Fatal(err)
		}
		uses := false
		for line := range strings.Lines(string(raw)) {
			if strings.HasPrefix(strings.TrimSpace(line), "#") {
				continue
			}
			uses = uses || strings.Contains(line, "%CONTAINER_SANDBOX_MOUNT_POINT%")
			if strings.Contains(strings.ReplaceAll(line, `\\`, `\`), `C:\hpc`) {
				t.Errorf("%s: %s", name, line)
			}
		}
		if !uses {
			t.Errorf("%s does not use the variable", name)
		}
	}
}
