package dist_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"flannel/internal/test/kubetest"
	"flannel/internal/test/kubetest/cluster"
	"flannel/internal/test/nettest"
)

// user runs commands in a cluster, in a directory that has what they need of the repository.
type user struct {
	t    *testing.T
	s    *kubetest.Server
	dir  string
	path string
}

func newUser(t *testing.T) *user {
	s := kubetest.Start(t, kubetest.Bare())
	u := &user{t: t, s: s, dir: t.TempDir()}
	for _, name := range []string{"Documentation", "dist"} {
		if err := os.Symlink(filepath.Join(nettest.Root(t), name), filepath.Join(u.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"helm", "kubectl", "flanneld"} { // a missing one fails here
		u.path = filepath.Dir(nettest.Tool(t, name))
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		last := ""
		for ctx.Err() == nil {
			if err := controllers(ctx, s.Client); err != nil && ctx.Err() == nil && err.Error() != last {
				last = err.Error() // a conflict is usual; the next pass repeats it
				t.Log(last)
			}
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	t.Cleanup(func() { stop(); <-done })
	return u
}

// try runs a script and returns its output.
func (u *user) try(script string) (string, error) {
	// timeout also ends what bash started.
	cmd := exec.Command("timeout", "300", "bash", "-euo", "pipefail", "-c", script)
	cmd.Dir = u.dir
	cmd.Env = append(os.Environ(), "KUBECONFIG="+u.s.File("admin.kubeconfig"), "HOME="+u.dir, "PATH="+u.path+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (u *user) run(script string) {
	u.t.Helper()
	if out, err := u.try(script); err != nil {
		u.t.Fatalf("%s\n%v\n%s", script, err, out)
	}
}

// block returns the commands of a page below a mark.
func (u *user) block(page, name string) string {
	u.t.Helper()
	out, err := exec.Command("./blocks.sh", "../Documentation/"+page, name).Output()
	if err != nil {
		u.t.Fatalf("%s, %s: %v", page, name, err)
	}
	return string(out)
}

func (u *user) daemonSet() *appsv1.DaemonSet {
	u.t.Helper()
	set, err := u.s.Client.AppsV1().DaemonSets(cluster.Namespace).Get(u.t.Context(), "kube-flannel-ds", metav1.GetOptions{})
	if err != nil {
		u.t.Fatal(err)
	}
	return set
}

// runs checks the image of the daemon's container and, unless it is flannel's, which has another one for the plugin, of
// the init containers.
func (u *user) runs(image string) {
	u.t.Helper()
	spec := u.daemonSet().Spec.Template.Spec
	all := spec.Containers
	if image != formerImage {
		all = slices.Concat(spec.InitContainers, all)
	}
	for _, c := range all {
		if c.Image != image {
			u.t.Errorf("%s runs %s, want %s", c.Name, c.Image, image)
		}
	}
}

// graces checks terminationGracePeriodSeconds, by which the test tells manifests apart.
func (u *user) graces(want int64) {
	u.t.Helper()
	if got := *u.daemonSet().Spec.Template.Spec.TerminationGracePeriodSeconds; got != want {
		u.t.Errorf("pods have %d s to end, want %d: another manifest was applied", got, want)
	}
}

// podRuns checks the image of flannel's pod of a node.
func (u *user) podRuns(node, image string) {
	u.t.Helper()
	pod, err := u.s.Client.CoreV1().Pods(cluster.Namespace).Get(u.t.Context(), "kube-flannel-ds-"+node, metav1.GetOptions{})
	if err != nil || pod.Spec.Containers[0].Image != image {
		u.t.Errorf("%s runs %v, want %s: %v", node, pod.Spec.Containers, image, err)
	}
}

// nodes are those on which controllers creates pods.
var nodes = []string{"node1", "node2"}

// controllers does once what a cluster does and the test's API server does not: it keeps the pods of DaemonSets, plays the
// kubelet that runs and ends them, makes the service accounts of namespaces, and removes deleted namespaces.
func controllers(ctx context.Context, client kubernetes.Interface) error {
	namespaces, err := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, n := range namespaces.Items {
		if n.DeletionTimestamp != nil {
			n.Spec.Finalizers = nil
			if _, err := client.CoreV1().Namespaces().Finalize(ctx, &n, metav1.UpdateOptions{}); err != nil {
				return err
			}
			continue
		}
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
		if _, err := client.CoreV1().ServiceAccounts(n.Name).Create(ctx, account, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	sets, err := client.AppsV1().DaemonSets(cluster.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	wanted := map[string]*appsv1.DaemonSet{}
	for _, set := range sets.Items {
		for _, node := range nodes {
			wanted[set.Name+"-"+node] = &set
		}
	}
	pods := client.CoreV1().Pods(cluster.Namespace)
	have, err := pods.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	current := map[string]int32{} // DaemonSet → pods of its template
	for _, pod := range have.Items {
		set := wanted[pod.Name]
		outdated := set == nil || set.Spec.UpdateStrategy.Type == appsv1.RollingUpdateDaemonSetStrategyType &&
			pod.Spec.Containers[0].Image != set.Spec.Template.Spec.Containers[0].Image
		if outdated || pod.DeletionTimestamp != nil {
			now := int64(0)
			if err := pods.Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
				return err
			}
			continue
		}
		current[set.Name]++
		delete(wanted, pod.Name)
	}
	for name, set := range wanted {
		if err := createPod(ctx, client, name, set); err != nil {
			return err
		}
	}
	for _, set := range sets.Items {
		n := int32(len(nodes))
		set.Status = appsv1.DaemonSetStatus{ObservedGeneration: set.Generation, DesiredNumberScheduled: n,
			UpdatedNumberScheduled: current[set.Name], NumberAvailable: current[set.Name], NumberReady: current[set.Name]}
		if current[set.Name] < n {
			set.Status.ObservedGeneration-- // the pods of this generation are not there yet
		}
		if _, err := client.AppsV1().DaemonSets(cluster.Namespace).UpdateStatus(ctx, &set, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

func createPod(ctx context.Context, client kubernetes.Interface, name string, set *appsv1.DaemonSet) error {
	pods := client.CoreV1().Pods(cluster.Namespace)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: set.Spec.Template.Labels}, Spec: *set.Spec.Template.Spec.DeepCopy()}
	pod.Spec.NodeName = strings.TrimPrefix(name, set.Name+"-")
	pod, err := pods.Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	_, err = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	return err
}

const (
	formerImage = "ghcr.io/flannel-io/flannel:v0.28.9"
	ourImage    = "registry.example.com/flanneld:v1.2.3"
	laterImage  = "registry.example.com/flanneld:v1.2.4"
)

// The documented commands install the chart, in each distribution of Kubernetes.
func TestCommandsOfChart(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	for name, want := range map[string]struct{ page, network, image string }{
		"install-chart":     {"install.md", "10.244.0.0/16", ourImage},
		"install-k3s":       {"install.md", "10.42.0.0/16", ourImage},
		"install-rke2":      {"install.md", "10.42.0.0/16", ourImage},
		"install-shellless": {"install.md", "10.244.0.0/16", ourImage + "-nftables"},
		"install-ipv6":      {"kubernetes.md", "fd00:244::/56", ourImage},
	} {
		u.run(u.block(want.page, name))
		u.runs(want.image)
		var paths []string
		for _, v := range u.daemonSet().Spec.Template.Spec.Volumes {
			if v.HostPath != nil {
				paths = append(paths, v.HostPath.Path)
			}
		}
		// k3s and RKE2, too, look in these directories when they run no network of their own.
		if !slices.Contains(paths, "/opt/cni/bin") || !slices.Contains(paths, "/etc/cni/net.d") || !strings.Contains(u.netConf(), want.network) {
			t.Errorf("%s: %v, %s", name, paths, u.netConf())
		}
		if name == "install-ipv6" {
			u.ipv6Alone()
		}
		u.run(u.block("install.md", "install-selinux"))
		if o := u.daemonSet().Spec.Template.Spec.SecurityContext.SELinuxOptions; o == nil || o.Type != "spc_t" {
			t.Errorf("%s, then install-selinux: the pod has the SELinux context %v", name, o)
		}
		u.runs(want.image)
		u.run("helm uninstall flannel --namespace kube-flannel")
	}
	former := filepath.Join(nettest.Root(t), "dist", "testdata", "former-chart")
	u.run("helm install flannel " + former + " --namespace kube-flannel --set podCidr=10.42.0.0/16")
	u.runs(formerImage)
	u.run(u.block("upgrade.md", "upgrade-chart"))
	u.runs(ourImage)
	if !strings.Contains(u.netConf(), "10.42.0.0/16") {
		t.Error("the upgrade changed the network:", u.netConf())
	}
	u.run(u.block("upgrade.md", "back-chart"))
	u.runs(formerImage)

	// Before flannel comes back, the guard is turned off: the previous revision of the release would turn it on.
	u.run(strings.Replace(u.block("upgrade.md", "upgrade-chart"), "--set ", "--set netConf.Guard=enforce,", 1))
	u.run(u.block("upgrade.md", "guard-off"))
	u.runs(ourImage)
	if !strings.Contains(u.netConf(), `"Guard": "off"`) || !strings.Contains(u.netConf(), "10.42.0.0/16") {
		t.Error("after the guard was turned off:", u.netConf())
	}
	u.run(strings.Replace(u.block("upgrade.md", "back-chart"), "helm rollback flannel", "helm rollback flannel 1", 1))
	u.runs(formerImage)

	// The canary leaves the container of netpol alone.
	u.run(strings.Replace(u.block("upgrade.md", "upgrade-chart"), "--set ", "--set netpol.enabled=true,", 1))
	u.run(u.block("upgrade.md", "canary"))
	spec := u.daemonSet().Spec.Template.Spec
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		if own := c.Name != "kube-network-policies"; (c.Image == laterImage) != own {
			t.Errorf("the canary's %s runs %s", c.Name, c.Image)
		}
	}
	if len(spec.Containers) != 3 {
		t.Errorf("the canary has %d containers", len(spec.Containers))
	}
	u.podRuns("node2", ourImage)
	u.run(u.block("upgrade.md", "upgrade-release"))
	u.podRuns("node2", laterImage)
	set := u.daemonSet()
	if len(set.Spec.Template.Spec.Containers) != 3 || set.Spec.UpdateStrategy.Type != appsv1.RollingUpdateDaemonSetStrategyType {
		t.Errorf("after the upgrade of all nodes: %+v", set.Spec)
	}
}

// ipv6Alone checks that the chart has made the configuration that kubernetes.md shows, and that flanneld accepts it.
func (u *user) ipv6Alone() {
	u.t.Helper()
	page := read(u.t, "../Documentation/kubernetes.md")
	_, shown, _ := strings.Cut(page, "\n## IPv6 alone\n")
	_, shown, _ = strings.Cut(shown, "```json\n")
	shown, _, _ = strings.Cut(shown, "```")
	var want, got map[string]any
	if err := errors.Join(json.Unmarshal([]byte(shown), &want), json.Unmarshal([]byte(u.netConf()), &got)); err != nil {
		u.t.Fatalf("%v: %s, %s", err, shown, u.netConf())
	}
	delete(got, "EnableNFTables") // the chart writes the default, too
	if diff := cmp.Diff(want, got); diff != "" {
		u.t.Error("the page (-) and the chart (+) differ:\n", diff)
	}
	u.run("flanneld check-config --os=linux - <<'END'\n" + shown + "END\n")
}

func (u *user) netConf() string {
	u.t.Helper()
	c, err := u.s.Client.CoreV1().ConfigMaps(cluster.Namespace).Get(u.t.Context(), "kube-flannel-cfg", metav1.GetOptions{})
	if err != nil {
		u.t.Fatal(err)
	}
	return c.Data["net-conf.json"]
}

// The documented commands replace flannel with its configuration and flags, unless the backend is missing, try the next
// version on one node, go back, and leave nothing.
func TestCommandsOfManifest(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	for _, name := range nodes {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"flannel.alpha.coreos.com/backend-type": "vxlan", "mine": "stays"}}}
		if _, err := u.s.Client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	former := filepath.Join(nettest.Root(t), "dist", "testdata", "former-chart")
	u.run("kubectl create namespace kube-flannel")
	install := func(values string) {
		u.run("helm template flannel " + former + " --namespace kube-flannel --set flannel.selector.app=flannel,flannel.selector.k8s-app=flannel," + values +
			" | kubectl -n kube-flannel apply -f -")
	}
	// The selector of flannel's chart.
	u.run("helm template flannel " + former + " --namespace kube-flannel --set podCidr=10.42.0.0/16 | kubectl -n kube-flannel apply -f -")
	replace := u.block("upgrade.md", "upgrade-check") + u.block("upgrade.md", "upgrade-manifest")
	if out, err := u.try(replace); err == nil || !strings.Contains(out, `{"app":"flannel"}`) {
		t.Errorf("with another selector the commands report success, or do not show it:\n%s", out)
	}
	u.runs(formerImage)
	u.run(u.block("upgrade.md", "upgrade-selector"))
	u.run(u.block("upgrade.md", "upgrade-manifest"))
	u.runs(ourImage)

	install("podCidr=10.42.0.0/16,flannel.backend=tencent-vpc")
	if out, err := u.try(replace); err == nil {
		t.Errorf("the commands replaced a flannel with a backend that flanneld lacks:\n%s", out)
	}
	u.runs(formerImage)
	install("podCidr=10.42.0.0/16,flannel.backend=vxlan")
	u.run(replace)
	u.runs(ourImage)
	if args := u.daemonSet().Spec.Template.Spec.Containers[0].Args; !slices.Contains(args, "--iface=eth1") || !strings.Contains(u.netConf(), "10.42.0.0/16") {
		t.Errorf("after the upgrade: %v, %s", args, u.netConf())
	}

	u.run(u.block("upgrade.md", "canary"))
	u.podRuns("node1", laterImage)
	u.podRuns("node2", ourImage)
	// The next release also has another manifest.
	pages := filepath.Join(nettest.Root(t), "Documentation")
	u.run("rm Documentation; mkdir Documentation; sed 's/GracePeriodSeconds: 10/GracePeriodSeconds: 20/' " + pages + "/kube-flannel.yml >Documentation/kube-flannel.yml")
	u.run(u.block("upgrade.md", "upgrade-kubernetes") + u.block("upgrade.md", "upgrade-kubernetes")) // as after a timeout
	u.podRuns("node2", laterImage)
	u.graces(20)
	u.run("rm -r Documentation; ln -s " + pages)
	u.run(u.block("upgrade.md", "rollback-kubernetes"))
	u.podRuns("node1", ourImage)
	u.graces(10)
	u.run("grep -F v1.2.3 flanneld/kustomization.yaml") // so that the next change by it keeps the release
	u.run("sed -i s/iface=eth1/iface=eth2/ flanneld/kustomization.yaml")
	u.run(u.block("upgrade.md", "upgrade-kubernetes") + u.block("upgrade.md", "rollback-kubernetes"))
	if args := u.daemonSet().Spec.Template.Spec.Containers[0].Args; !slices.Contains(args, "--iface=eth2") {
		t.Error("after a second upgrade and the way back, flanneld has the former flags:", args)
	}
	u.runs(ourImage)

	policies := u.s.Client.AdmissionregistrationV1().ValidatingAdmissionPolicies()
	if _, err := policies.Get(t.Context(), "flannel", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	u.run(u.block("upgrade.md", "back-manifest"))
	if _, err := policies.Get(t.Context(), "flannel", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Error("the policy is left:", err)
	}
	u.run("kubectl apply -f Documentation/kube-flannel-windows.yml")
	u.run(u.block("upgrade.md", "remove-kubernetes"))
	u.run(u.block("upgrade.md", "remove-windows"))
	for name, image := range map[string]string{"kube-flannel-cleanup": ourImage, "kube-flannel-cleanup-windows": "registry.example.com/flanneld-windows:v1.2.3"} {
		set, err := u.s.Client.AppsV1().DaemonSets(cluster.Namespace).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || set.Spec.Template.Spec.InitContainers[0].Image != image {
			t.Errorf("%s runs %v, want %s: %v", name, set.Spec.Template.Spec.InitContainers, image, err)
		}
	}
	u.run(u.block("upgrade.md", "remove-objects"))
	u.run(u.block("upgrade.md", "remove-annotations"))
	all, err := u.s.Client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(all.Items) != len(nodes) {
		t.Fatal(all, err)
	}
	for _, n := range all.Items {
		if len(n.Annotations) != 1 || n.Annotations["mine"] != "stays" {
			t.Error(n.Name, "has", n.Annotations)
		}
	}
	for _, kind := range []string{"namespace kube-flannel", "clusterrole flannel", "validatingadmissionpolicybinding flannel"} {
		if out, err := u.try("kubectl get " + kind); err == nil {
			t.Errorf("left: %s", out)
		}
	}
	u.run(u.block("install.md", "install-manifest"))
	u.runs(ourImage)
	u.podRuns("node1", ourImage)

	u.run("sed 's,flanneld:dev," + laterImage + ",' Documentation/kube-flannel.yml >kube-flannel.yml") // as in a release
	u.run(u.block("install.md", "install-release"))
	u.runs(laterImage)
	u.podRuns("node1", laterImage)

	// Another prefix of annotations.
	setup, apply, _ := strings.Cut(u.block("upgrade.md", "upgrade-manifest"), "kubectl kustomize ")
	u.run(setup + u.block("upgrade.md", "upgrade-prefix") + "kubectl kustomize " + apply)
	if args := u.daemonSet().Spec.Template.Spec.Containers[0].Args; !slices.Contains(args, "--kube-annotation-prefix=example.com/net-") {
		t.Error("the prefix is not in", args)
	}
	knowsPrefix(t, u.s)
}
