//go:build cluster

package cluster_test

import (
	"testing"

	"flannel/cmd/flannel-lab/cluster"
)

// TestClusterUpgrade goes from flannel to the former release and to this tree, and
// all the way back, by manifest, and removes everything.
func TestClusterUpgrade(t *testing.T) {
	u := bare(t, cluster.Options{})
	c := u.c
	u.importImages(t)
	u.tagPause(t)
	before := u.nodeStates(t)
	// The selector of flannel's manifest.
	flannel := "helm template flannel " + playFlannel + " --set flannel.selector.app=flannel,flannel.selector.k8s-app=flannel" +
		" | kubectl -n kube-flannel apply -f - && kubectl -n kube-flannel rollout status daemonset/kube-flannel-ds"
	u.run(t, "kubectl create namespace kube-flannel")
	u.run(t, flannel)
	u.installed(t, flannelImage)
	must(t, c.ApplyPods(t.Context()))
	talk(t, c)

	for _, step := range []struct {
		name   string
		script string
		edits  []string
		images []string
	}{
		{"from flannel", block(t, "upgrade.md", "upgrade-check") + block(t, "upgrade.md", "upgrade-manifest"), []string{"--iface=eth1", "--iface=eth0"}, []string{formerImage}},
		{"the canary", block(t, "upgrade.md", "canary"), nil, []string{laterImage, formerImage}},
		{"all nodes", block(t, "upgrade.md", "upgrade-kubernetes"), nil, []string{laterImage}},
		{"back to the former manifest", block(t, "upgrade.md", "rollback-kubernetes"), nil, []string{formerImage}},
		{"rollout undo, to the later one", rolloutUndo, nil, []string{laterImage}},
		{"rollout undo, to the former one", rolloutUndo, nil, []string{formerImage}},
		{"back to flannel", flannel + "\n" + block(t, "upgrade.md", "back-manifest"), nil, []string{flannelImage}},
		{"from flannel to this tree", block(t, "upgrade.md", "upgrade-kubernetes"), nil, []string{laterImage}},
	} {
		t.Run(step.name, func(t *testing.T) {
			lossless(t, c, func() { u.run(t, step.script, step.edits...) })
			u.installed(t, step.images...)
			talk(t, c)
		})
	}
	if u.versions[formerImage] == u.versions[laterImage] {
		t.Errorf("both releases are version %s", u.versions[laterImage])
	}
	t.Run("flanneld is removed and installed", func(t *testing.T) {
		u.remove(t, laterImage)
		u.nothingRemains(t, before)
		u.run(t, block(t, "install.md", "install-manifest"), "v1.2.3", "v1.2.4")
		u.installed(t, laterImage)
		talk(t, c)
	})
}

const rolloutUndo = `kubectl -n kube-flannel rollout undo daemonset/kube-flannel-ds
kubectl -n kube-flannel rollout status daemonset/kube-flannel-ds`
