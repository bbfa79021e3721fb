//go:build cluster

package cluster_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"flannel/cmd/flannel-lab/cluster"
	api "flannel/internal/test/kubetest/cluster"
	"flannel/internal/test/logtest"
	"flannel/internal/test/nettest"
)

// playFlannel is the chart by which flanneld plays flannel, for Helm.
const playFlannel = "dist/testdata/former-chart --namespace kube-flannel"

// gone waits until flannel's pods have ended.
const gone = "kubectl -n kube-flannel wait pod -l app=flannel --for=delete --timeout=30m"

// remove removes flanneld and its objects by the commands of the page, with an
// image that has iptables. The edits are those of run, for the first commands.
func (u *user) remove(t *testing.T, image string, edits ...string) {
	t.Helper()
	u.run(t, block(t, "upgrade.md", "remove-kubernetes"), append(edits, "registry.example.com/flanneld:v1.2.3", image)...)
	if logs := u.run(t, block(t, "upgrade.md", "cleanup-logs")); !logtest.Names(logs, "flannel.1") {
		t.Errorf("the log of the cleanup does not name the device:\n%s", logs)
	}
	u.run(t, block(t, "upgrade.md", "remove-objects"))
	u.run(t, block(t, "upgrade.md", "remove-annotations"))
	for _, kind := range []string{"namespace kube-flannel", "clusterrole flannel", "clusterrolebinding flannel",
		"validatingadmissionpolicy flannel", "validatingadmissionpolicybinding flannel"} {
		if out, err := u.try(t.Context(), u.c.Infra.Namespaces, "kubectl get "+kind); err == nil {
			t.Errorf("left in the cluster: %s", out)
		}
	}
	for _, n := range u.c.Nodes {
		object, err := n.Object(t.Context())
		must(t, err)
		for name := range object.Annotations {
			if strings.HasPrefix(name, "flannel.") {
				t.Errorf("%s still has the annotation %s", n.Name, name)
			}
		}
	}
}

// TestClusterChart upgrades a release of flannel's chart with its values, goes
// back, changes values, and removes and installs the chart.
func TestClusterChart(t *testing.T) {
	u := bare(t, cluster.Options{})
	c := u.c
	u.importImages(t)
	u.tagPause(t)
	before := u.nodeStates(t)
	u.run(t, "helm install flannel "+playFlannel+" --create-namespace")
	u.installed(t, flannelImage)
	must(t, c.ApplyPods(t.Context()))
	talk(t, c)

	upgrade := block(t, "upgrade.md", "upgrade-chart")
	t.Run("flannel's release is upgraded", func(t *testing.T) {
		lossless(t, c, func() { u.run(t, upgrade) })
		u.installed(t, formerImage)
		u.healthy(t, 8081)
		talk(t, c)
	})
	t.Run("and rolled back", func(t *testing.T) {
		lossless(t, c, func() { u.run(t, block(t, "upgrade.md", "back-chart")) })
		u.installed(t, flannelImage)
		talk(t, c)
	})
	t.Run("flannel's release is upgraded to this tree", func(t *testing.T) {
		lossless(t, c, func() { u.run(t, upgrade, "v1.2.3", "v1.2.4") })
		u.installed(t, laterImage)
		u.run(t, block(t, "install.md", "watch"))
	})
	t.Run("values are changed", func(t *testing.T) {
		lossless(t, c, func() {
			u.run(t, upgrade, "v1.2.3", "v1.2.4,flannel.healthz.port=9081,flannel.resources.requests.cpu=30m")
			u.healthy(t, 9081)
			u.run(t, block(t, "upgrade.md", "back-chart"))
			u.healthy(t, 8081)
		})
		u.installed(t, laterImage)
		talk(t, c)
	})
	t.Run("the release is uninstalled", func(t *testing.T) {
		lossless(t, c, func() {
			u.run(t, "helm uninstall flannel --namespace kube-flannel")
			u.run(t, gone)
		})
		talk(t, c) // the network stays
		u.remove(t, laterImage, "kubectl -n kube-flannel delete daemonset kube-flannel-ds", "")
		u.nothingRemains(t, before)
	})
	t.Run("the chart is installed", func(t *testing.T) {
		u.run(t, block(t, "install.md", "install-chart"), "v1.2.3", "v1.2.4")
		u.installed(t, laterImage)
		talk(t, c)
	})
	t.Run("the chart is installed with the image without a shell", func(t *testing.T) {
		u.run(t, "helm uninstall flannel --namespace kube-flannel")
		u.run(t, gone)
		u.run(t, block(t, "install.md", "install-shellless"), "v1.2.3", "v1.2.4")
		u.installed(t, laterImage+"-nftables")
		talk(t, c)
	})
}

// healthy waits until flanneld of each node is ready, as it says on a port.
func (u *user) healthy(t *testing.T, port int) {
	t.Helper()
	for _, n := range u.c.Nodes {
		eventually(t, func(ctx context.Context) error {
			code, body, err := n.Get(ctx, fmt.Sprintf("http://127.0.0.1:%d/readyz", port))
			if err == nil && code != http.StatusOK {
				err = fmt.Errorf("%s, port %d: %d %s", n.Name, port, code, body)
			}
			return err
		})
	}
}

// kustomization writes a kustomization on top of the pages' base, with a network
// configuration. It is applied by `kubectl apply -k NAME`.
func (u *user) kustomization(t *testing.T, name, netConf, more string) {
	t.Helper()
	must(t, os.Mkdir(filepath.Join(u.dir, name), 0o755))
	text := `resources: [../Documentation]
patches:
- target: {kind: ConfigMap, name: kube-flannel-cfg}
  patch: |
    - {op: replace, path: /data/net-conf.json, value: ` + fmt.Sprintf("%q", netConf) + `}
` + more
	must(t, os.WriteFile(filepath.Join(u.dir, name, "kustomization.yaml"), []byte(text), 0o644))
}

// TestClusterKustomize installs flanneld by kustomize, switches to the image
// without iptables, and installs the component for udp.
func TestClusterKustomize(t *testing.T) {
	u := bare(t, cluster.Options{})
	c := u.c
	u.tagPause(t)
	before := u.nodeStates(t)
	u.run(t, "kubectl apply -k Documentation")
	u.installed(t, treeImage)
	must(t, c.ApplyPods(t.Context()))
	talk(t, c)

	u.kustomization(t, "nftables", `{"Network": "10.244.0.0/16", "EnableNFTables": true, "Backend": {"Type": "vxlan"}}`,
		"images: [{name: flanneld, newTag: dev-nftables}]\n")
	t.Run("the image without iptables takes over", func(t *testing.T) {
		lossless(t, c, func() {
			u.run(t, "kubectl apply -k nftables && kubectl -n kube-flannel rollout status daemonset/kube-flannel-ds")
		})
		u.installed(t, treeImage+"-nftables")
		talk(t, c)
		if n := u.warnings(t); n != len(c.Nodes) {
			t.Errorf("%d daemons say that rules of iptables remain, want all", n)
		}
	})
	t.Run("rules of iptables are removed", func(t *testing.T) { u.removeIPTables(t, before) })
	t.Run("the image without iptables is installed", func(t *testing.T) {
		u.run(t, "kubectl apply -k nftables")
		u.installed(t, treeImage+"-nftables")
		talk(t, c)
		if n := u.warnings(t); n != 0 {
			t.Errorf("%d daemons say that rules of iptables remain", n)
		}
		u.run(t, block(t, "doctor.md", "bundles"))
		for _, n := range c.Nodes {
			u.run(t, "tar -tzf "+n.Name+".tar.gz")
		}
	})
	t.Run("the image with iptables takes over", func(t *testing.T) {
		lossless(t, c, func() {
			u.run(t, "kubectl apply -k Documentation && kubectl -n kube-flannel rollout status daemonset/kube-flannel-ds")
		})
		u.installed(t, treeImage)
		talk(t, c)
		u.remove(t, treeImage)
		u.nothingRemains(t, before)
	})
	u.kustomization(t, "tun", `{"Network": "10.244.0.0/16", "Backend": {"Type": "udp"}}`, "components: [../Documentation/udp]\n")
	t.Run("the component for udp", func(t *testing.T) {
		u.run(t, "kubectl apply -k tun")
		u.installed(t, treeImage)
		talk(t, c)
	})
}

// warnings returns how many daemons have logged that rules of iptables remain.
func (u *user) warnings(t *testing.T) (n int) {
	t.Helper()
	for _, p := range flannelPods(t, u.c) {
		var log logtest.Log
		text, err := u.c.Kubectl(t.Context(), "-n", api.Namespace, "logs", p.Name, "-c", "kube-flannel")
		must(t, err)
		_, err = log.Write([]byte(text))
		must(t, err)
		n += min(1, log.Count("cause=iptables-rules-remain"))
	}
	return n
}

// removeIPTables cleans up with the image without iptables, which fails because
// of the rules that remain, and then, as its message says, with the one that has
// iptables.
func (u *user) removeIPTables(t *testing.T, before []string) {
	u.run(t, "kubectl -n kube-flannel delete daemonset kube-flannel-ds")
	u.run(t, gone)
	u.run(t, "sed 's,flanneld:dev,flanneld:dev-nftables,' Documentation/kube-flannel-cleanup.yml | kubectl apply -f -")
	u.waiting(t, "app=flannel-cleanup", "CrashLoopBackOff")
	logs := u.run(t, block(t, "upgrade.md", "cleanup-logs"))
	if !logtest.Names(logs, "FLANNEL-POSTRTG", "flanneld cleanup", "-nftables") {
		t.Errorf("the cleanup without iptables logs\n%s", logs)
	}
	u.run(t, "kubectl delete -f Documentation/kube-flannel-cleanup.yml")
	u.run(t, "kubectl -n kube-flannel wait pod -l app=flannel-cleanup --for=delete --timeout=30m")
	u.run(t, "kubectl apply -f Documentation/kube-flannel-cleanup.yml && kubectl -n kube-flannel rollout status daemonset/kube-flannel-cleanup")
	u.run(t, block(t, "upgrade.md", "remove-objects"))
	u.nothingRemains(t, before)
}

// TestClusterWithoutRegistry installs a release's manifest, which names the image
// by its digest, and removes it, with images that are imported.
func TestClusterWithoutRegistry(t *testing.T) {
	u := bare(t, cluster.Options{Nodes: 1})
	c, node, pullErrors := u.c, u.c.Nodes[0].Namespaces, []string{"ErrImagePull", "ImagePullBackOff"}
	manifest := "kubectl apply -f " + nettest.Tool(t, "cluster/v1.2.3/kube-flannel.yml")
	commands := block(t, "install.md", "import-image")
	before := u.nodeStates(t)

	// Such an import makes a reference by tag only.
	if _, err := u.try(t.Context(), node, strings.Replace(commands, "--digests ", "", 1)); err == nil {
		t.Error("the check on the page passes without a reference by digest")
	}
	u.run(t, manifest)
	u.waiting(t, cluster.FlannelPods, pullErrors...)
	u.onNodes(t, commands)
	must(t, c.PodsReady(t.Context(), api.Namespace, cluster.FlannelPods))
	must(t, c.NodesReady(t.Context()))
	must(t, c.ApplyPods(t.Context()))
	talk(t, c)

	// An archive of pause, and pause is not there. Without --local, ctr may end before the archive is whole.
	const pause = "registry.k8s.io/pause:3.10"
	u.tagPause(t)
	u.onNodes(t, "ctr -n k8s.io images export --local pause.tar "+pause+" && ctr -n k8s.io images rm "+pause)
	u.run(t, "kubectl -n kube-flannel delete daemonset kube-flannel-ds")
	u.run(t, gone)
	const apply = " Documentation/kube-flannel-cleanup.yml | kubectl apply -f -"
	u.run(t, "sed 's,flanneld:dev,"+formerImage+",'"+apply)
	u.waiting(t, "app=flannel-cleanup", pullErrors...)
	u.onNodes(t, "ctr -n k8s.io images import pause.tar")
	u.run(t, "kubectl -n kube-flannel rollout status daemonset/kube-flannel-cleanup")
	u.nothingRemains(t, before)

	// The image of sandboxes, which the nodes have, in its place.
	u.onNodes(t, "ctr -n k8s.io images rm "+pause)
	u.run(t, "kubectl delete -f Documentation/kube-flannel-cleanup.yml")
	u.run(t, "kubectl -n kube-flannel wait pod -l app=flannel-cleanup --for=delete --timeout=30m")
	u.run(t, "sed 's,flanneld:dev,"+formerImage+",; s,"+pause+",docker.io/library/flannel-lab-pod:dev,'"+apply)
	u.run(t, "kubectl -n kube-flannel rollout status daemonset/kube-flannel-cleanup")
}
