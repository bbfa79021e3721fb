//go:build cluster

package cluster_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flannel/cmd/flannel-lab/cluster"
	"flannel/cmd/flannel-lab/machine"
)

// TestClusterBesideOthers has other programs on the nodes that use the directories
// of CNI and the subnet file.
func TestClusterBesideOthers(t *testing.T) {
	c := start(t, cluster.Options{})
	t.Run("a list of plugins that sorts later", func(t *testing.T) { besideList(t, c) })
	t.Run("readers of subnet.env", func(t *testing.T) { besideReaders(t, c) })
	t.Run("a plugin that calls this one", func(t *testing.T) { belowPlugin(t, c) })
}

const (
	netDir      = "/etc/cni/net.d/"
	flannelList = netDir + "10-flannel.conflist"
)

// besideList has the list of another plugin, as the package of a container engine
// installs it. It must not be used, also not while flannel's list is missing:
// keep-cni writes that again.
func besideList(t *testing.T, c *cluster.Cluster) {
	ctx := t.Context()
	for _, n := range c.Nodes {
		must(t, n.WriteFile(netDir+"87-other.conflist", `{"name": "other", "cniVersion": "0.3.1", "plugins": [{"type": "bridge",
"bridge": "other0", "isGateway": true, "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/16"}]]}}]}`))
	}
	recreate(t, c)
	for _, n := range c.Nodes {
		_, err := n.Run(ctx, "rm", flannelList)
		must(t, err)
	}
	for _, n := range c.Nodes {
		_, err := machine.Until(ctx, machine.Longest, func(context.Context) error {
			_, err := n.ReadFile(flannelList)
			return err
		})
		must(t, err)
		must(t, n.StopService(ctx, cluster.Containerd, syscall.SIGTERM)) // reads the directory when it starts
		must(t, n.StartService(ctx, cluster.Containerd))
	}
	must(t, c.NodesReady(ctx))
	recreate(t, c)
	talk(t, c)
}

// recreate deletes the web servers and waits for others, which must have addresses
// of their nodes.
func recreate(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	kubectl(t, c, "delete", "pods", "-l", cluster.WebPods)
	must(t, c.PodsReady(t.Context(), metav1.NamespaceDefault, cluster.WebPods))
	for _, p := range webPods(t, c) {
		cidrs, err := c.PodCIDRs(t.Context(), p.Node.Name)
		must(t, err)
		if !cidrs[0].Contains(p.IP4) {
			t.Errorf("the pod on %s has the address %s, which is not in %s", p.Node.Name, p.IP4, cidrs[0])
		}
	}
}

// besideReaders has a program on each node that reads the subnet file in a shell, as
// the start of a container engine does. The file must be there, whole and the same
// at every moment, also when flanneld is killed and restarted.
func besideReaders(t *testing.T, c *cluster.Cluster) {
	ctx, stop := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	for _, n := range c.Nodes {
		cidrs, err := c.PodCIDRs(ctx, n.Name)
		must(t, err)
		want := fmt.Sprintf("10.244.0.0/16 %s/24 1450 true", cidrs[0].Addr().Next())
		readers.Go(func() {
			reads := 0
			for ; ctx.Err() == nil; reads++ {
				out, err := n.Run(ctx, "sh", "-c", `. /run/flannel/subnet.env && echo "$FLANNEL_NETWORK $FLANNEL_SUBNET $FLANNEL_MTU $FLANNEL_IPMASQ"`)
				if got := strings.TrimSpace(out); ctx.Err() == nil && (err != nil || got != want) {
					t.Errorf("%s, read %d: %q, want %q; %v", n.Name, reads, got, want, err)
					return
				}
			}
			t.Logf("%s: read %d times", n.Name, reads)
		})
	}
	lossless(t, c, func() {
		must(t, c.Nodes[0].KillDaemon(ctx, syscall.SIGKILL))
		must(t, c.Nodes[1].KillDaemon(ctx, syscall.SIGTERM))
	})
	stop()
	readers.Wait()
}

// belowPlugin has a plugin whose configuration sorts first, and which calls this one
// with a configuration of its own file, as Multus does with a delegate. Pods that it
// added are deleted after it is gone. Nothing of them may stay.
func belowPlugin(t *testing.T, c *cluster.Cluster) {
	ctx := t.Context()
	const meta = netDir + "00-meta.conf"
	for _, n := range c.Nodes {
		must(t, n.WriteFile("/etc/cni/delegate.conf",
			`{"name": "cbr0", "cniVersion": "0.3.1", "type": "flannel", "delegate": {"hairpinMode": true, "isDefaultGateway": true}}`))
		must(t, n.WriteFile("/opt/cni/bin/meta", "#!/bin/sh\necho $CNI_COMMAND >>/run/meta.log\nexec /opt/cni/bin/flannel </etc/cni/delegate.conf\n"))
		_, err := n.Run(ctx, "chmod", "755", "/opt/cni/bin/meta")
		must(t, err)
		must(t, n.WriteFile(meta, `{"name": "meta", "cniVersion": "0.3.1", "type": "meta"}`))
	}
	calls := func(n *cluster.Node, command string) (count int) {
		log, _ := n.ReadFile("/run/meta.log") // missing before the first call
		for _, line := range strings.Fields(string(log)) {
			if line == command {
				count++
			}
		}
		return count
	}
	for _, n := range c.Nodes { // containerd follows the directory when it is notified
		for calls(n, "ADD") == 0 {
			recreate(t, c)
		}
	}
	talk(t, c)
	for _, n := range c.Nodes {
		_, err := n.Run(ctx, "rm", meta)
		must(t, err)
	}
	for _, n := range c.Nodes {
		for before := -1; before != calls(n, "ADD"); {
			before = calls(n, "ADD")
			recreate(t, c)
		}
	}
	talk(t, c)
	for _, p := range webPods(t, c) { // the only pod on its node that is not in the network of the host
		for _, pattern := range []string{"/var/lib/cni/flannel/*", "/var/lib/cni/networks/cbr0/10.*"} {
			var files []string
			must(t, p.Node.Do(func() (err error) {
				files, err = filepath.Glob(pattern)
				return err
			}))
			if len(files) != 1 || strings.HasSuffix(pattern, "10.*") && !slices.Contains(files, filepath.Dir(pattern)+"/"+p.IP4.String()) {
				t.Errorf("%s: files of one pod, %s: %q", p.Node.Name, p.IP4, files)
			}
		}
	}
}
