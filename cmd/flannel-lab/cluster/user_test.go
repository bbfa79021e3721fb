//go:build cluster

package cluster_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flannel/cmd/flannel-lab/cluster"
	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/machine"
	api "flannel/internal/test/kubetest/cluster"
	"flannel/internal/test/nettest"
)

// user runs the commands of the pages, as an administrator of the cluster and on
// its nodes, in a directory that has what they need of the repository.
//
// The image v1.2.3 of the pages is that of the former release, v1.2.4 that of
// this tree. flanneld of the former release also plays flannel, with a chart of
// the same form as flannel's: dist/testdata/former-chart.
type user struct {
	c   *cluster.Cluster
	dir string
	env []string

	versions map[string]string // image → what its flanneld says on a node
}

// bare creates a cluster without a pod network, and its user.
func bare(t *testing.T, o cluster.Options) *user {
	t.Helper()
	c := create(t, o)
	u := &user{c: c, dir: t.TempDir(), versions: map[string]string{}}
	for _, name := range []string{"Documentation", "dist"} {
		must(t, os.Symlink(filepath.Join(nettest.Root(t), name), filepath.Join(u.dir, name)))
	}
	bin := filepath.Dir(nettest.Tool(t, "helm"))
	u.env = []string{"env", "--chdir=" + u.dir, "HOME=" + u.dir, "KUBECONFIG=" + cluster.Kubeconfig,
		"PATH=" + filepath.Join(bin, "cluster") + ":" + bin + ":" + os.Getenv("PATH")}
	for _, version := range []string{"v1.2.3", "v1.2.4"} {
		for _, file := range []string{"flanneld-" + version + "-image.tar", "flanneld-" + version + "-image-nftables.tar"} {
			must(t, os.Symlink(nettest.Tool(t, filepath.Join("cluster", version, file)), filepath.Join(u.dir, file)))
		}
	}
	return u
}

// try runs a script in the namespaces of a node, or of infra.
func (u *user) try(ctx context.Context, ns machine.Namespaces, script string) (string, error) {
	return ns.Run(ctx, append(slices.Clone(u.env), "bash", "-euo", "pipefail", "-c", script)...)
}

// run runs a script as the administrator. Each pair of edits is a text in the
// script and its replacement.
func (u *user) run(t *testing.T, script string, edits ...string) string {
	t.Helper()
	return u.runOn(t, u.c.Infra.Namespaces, script, edits...)
}

func (u *user) runOn(t *testing.T, ns machine.Namespaces, script string, edits ...string) string {
	t.Helper()
	for i := 0; i < len(edits); i += 2 {
		if !strings.Contains(script, edits[i]) {
			t.Fatalf("%q is not in the commands\n%s", edits[i], script)
		}
	}
	out, err := u.try(t.Context(), ns, strings.NewReplacer(edits...).Replace(script))
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return out
}

// block returns the commands of a page below a mark.
func block(t *testing.T, page, name string) string {
	t.Helper()
	root := nettest.Root(t)
	out, err := exec.Command(filepath.Join(root, "dist", "blocks.sh"), filepath.Join(root, "Documentation", page), name).Output()
	if err != nil {
		t.Fatalf("%s, %s: %v", page, name, err)
	}
	return string(out)
}

// onNodes runs a script on each node.
func (u *user) onNodes(t *testing.T, script string, edits ...string) {
	t.Helper()
	for _, n := range u.c.Nodes {
		u.runOn(t, n.Namespaces, script, edits...)
	}
}

// importImages imports both images of both releases, and that of flannel, on each
// node.
func (u *user) importImages(t *testing.T) {
	t.Helper()
	commands := block(t, "install.md", "import-image")
	u.onNodes(t, commands)
	u.onNodes(t, commands, "v1.2.3", "v1.2.4")
	u.onNodes(t, commands, "v1.2.3-image", "v1.2.4-image-nftables")
	for _, name := range []string{"flannel:v0.28.9", "flannel-cni-plugin:v1.9.1"} {
		u.onNodes(t, "ctr -n k8s.io images tag registry.example.com/flanneld:v1.2.3 ghcr.io/flannel-io/"+name)
	}
}

// tagPause gives the nodes the image of the cleanup manifest that does nothing.
func (u *user) tagPause(t *testing.T) {
	t.Helper()
	u.onNodes(t, "ctr -n k8s.io images tag docker.io/library/flannel-lab-pod:dev registry.k8s.io/pause:3.10")
}

// Images of flannel's pods.
const (
	flannelImage = "ghcr.io/flannel-io/flannel:v0.28.9"
	formerImage  = "registry.example.com/flanneld:v1.2.3"
	laterImage   = "registry.example.com/flanneld:v1.2.4"
	treeImage    = "flanneld:dev"
)

// installed waits until the pods of flannel and all nodes are ready, and checks
// the image of the daemon on each node: one for all, or one for each.
func (u *user) installed(t *testing.T, images ...string) {
	t.Helper()
	must(t, u.c.PodsReady(t.Context(), api.Namespace, cluster.FlannelPods))
	must(t, u.c.NodesReady(t.Context()))
	pods := flannelPods(t, u.c)
	if len(pods) != len(u.c.Nodes) {
		t.Fatalf("%d pods of flannel on %d nodes", len(pods), len(u.c.Nodes))
	}
	for i, p := range pods {
		image := p.Object.Spec.Containers[0].Image
		if want := images[i%len(images)]; image != want {
			t.Errorf("the pod on %s has the image %s, want %s", p.Node.Name, image, want)
		}
		version, err := u.c.Kubectl(t.Context(), "-n", api.Namespace, "exec", p.Name, "-c", "kube-flannel", "--", "/opt/bin/flanneld", "--version")
		must(t, err)
		u.versions[image] = version
	}
}

// waiting waits until a pod of a DaemonSet waits for one of the reasons.
func (u *user) waiting(t *testing.T, selector string, reasons ...string) {
	t.Helper()
	eventually(t, func(ctx context.Context) error {
		list, err := u.c.Client.CoreV1().Pods(api.Namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			return err
		}
		for _, p := range list.Items {
			for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
				if w := s.State.Waiting; w != nil && slices.Contains(reasons, w.Reason) && p.DeletionTimestamp == nil {
					return nil
				}
			}
		}
		return &notWaiting{list.Items}
	})
}

// notWaiting means that no pod waits for the reason that a test expects.
type notWaiting struct{ pods []corev1.Pod }

func (e *notWaiting) Error() string {
	text := "no pod waits for the reason:"
	for _, p := range e.pods {
		text += " " + p.Name + " " + string(p.Status.Phase)
	}
	return text
}

func eventually(t *testing.T, f func(ctx context.Context) error) {
	t.Helper()
	_, err := machine.Until(t.Context(), machine.Longest, f)
	must(t, err)
}

// nodeStates returns the network state and the files of each node, without what
// kube-proxy, the bridge of the pods and the runtime do on their own. It waits for
// the first rules of kube-proxy.
func (u *user) nodeStates(t *testing.T) (states []string) {
	t.Helper()
	const proxied = "iptables-save -t nat | grep -q KUBE-POSTROUTING && ip6tables-save -t nat | grep -q KUBE-POSTROUTING"
	const files = `; echo "# files"; find /run/flannel /etc/cni /opt/cni -type f -o -type s 2>/dev/null | sort`
	for _, n := range u.c.Nodes {
		eventually(t, func(ctx context.Context) error {
			_, err := n.Run(ctx, "sh", "-c", proxied)
			return err
		})
		out, err := n.Run(t.Context(), "sh", "-c", lab.NetworkState+files)
		must(t, err)
		states = append(states, ownLines(out))
	}
	return states
}

var iptablesTable = regexp.MustCompile(`^table ip6? (filter|nat|mangle|raw) {`)

// ownLines returns the lines of a state that are not kube-proxy's or the bridge's.
// The tables of iptables are also listed as tables of nftables, where they are
// left out.
func ownLines(state string) string {
	var kept []string
	inIPTables := false
	for line := range strings.SplitSeq(state, "\n") {
		switch {
		case iptablesTable.MatchString(line):
			inIPTables = true
		case inIPTables:
			inIPTables = line != "}"
		default:
			if !slices.ContainsFunc([]string{"KUBE-", "cni0", "veth"}, func(word string) bool { return strings.Contains(line, word) }) {
				kept = append(kept, line)
			}
		}
	}
	return strings.Join(kept, "\n")
}

// remains are the files that a removal leaves, by the page.
var remains = []string{"/etc/cni/net.d/10-flannel.conflist", "/etc/cni/net.d/10-flannel.conflist.applied", "/opt/cni/bin/flannel",
	"/run/flannel/flanneld.lock", "/run/flannel/subnet.env"}

// nothingRemains checks that the nodes are as before, apart from the files that
// stay.
func (u *user) nothingRemains(t *testing.T, before []string) {
	t.Helper()
	for i, after := range u.nodeStates(t) {
		var left []string
		for line := range strings.SplitSeq(lab.Changes(before[i], after), "\n") {
			if line != "" && !slices.Contains(remains, strings.TrimPrefix(line, "+ ")) {
				left = append(left, line)
			}
		}
		if left != nil {
			t.Errorf("installation and removal changed %s:\n%s", u.c.Nodes[i].Name, strings.Join(left, "\n"))
		}
	}
}
