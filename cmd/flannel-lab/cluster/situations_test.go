//go:build cluster

package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flannel/cmd/flannel-lab/cluster"
	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/machine"
	api "flannel/internal/test/kubetest/cluster"
	"flannel/internal/test/logtest"
)

// kubectl runs kubectl as the administrator.
func kubectl(t *testing.T, c *cluster.Cluster, args ...string) string {
	t.Helper()
	out, err := c.Kubectl(t.Context(), args...)
	must(t, err)
	return out
}

// TestClusterNodeLeaves drains the last node for maintenance, and then removes it
// from the cluster for good, or so the others have to believe.
func TestClusterNodeLeaves(t *testing.T) {
	c := start(t, cluster.Options{Nodes: 3})
	others, last := c.Nodes[:2], c.Nodes[2]
	kubectl(t, c, "cordon", others[0].Name, others[1].Name)
	kubectl(t, c, "create", "deployment", "movable", "--image=flannel-lab-pod:dev", "--", "/pod", "serve")
	movedTo(t, c, last)
	kubectl(t, c, "uncordon", others[0].Name, others[1].Name)
	t.Run("drained and rebooted", func(t *testing.T) { maintain(t, c, others, last) })
	t.Run("drained, deleted and off", func(t *testing.T) { leaveAndJoin(t, c, others, last) })
}

// movedTo waits until the pod of the Deployment movable runs on one of the nodes
// and answers pods of all nodes that are on.
func movedTo(t *testing.T, c *cluster.Cluster, nodes ...*cluster.Node) {
	t.Helper()
	var moved *cluster.Pod
	eventually(t, func(ctx context.Context) error {
		pods, err := c.Pods(ctx, metav1.NamespaceDefault, "app=movable")
		if err != nil {
			return err
		}
		for _, p := range pods {
			for _, n := range nodes {
				if p.Node == n {
					moved = p
					return nil
				}
			}
		}
		return fmt.Errorf("%d pods, none on the nodes", len(pods))
	})
	web, err := c.Pods(t.Context(), metav1.NamespaceDefault, cluster.WebPods)
	must(t, err)
	for _, from := range web {
		if _, err := from.Reach(t.Context(), moved.IP4, machine.Longest); err != nil {
			t.Errorf("pod on %s to the moved pod on %s: %v", from.Node.Name, moved.Node.Name, err)
		}
	}
}

// maintain drains the last node, reboots it and makes it schedulable again. Its
// Deployment's pod goes to the others and comes back.
func maintain(t *testing.T, c *cluster.Cluster, others []*cluster.Node, last *cluster.Node) {
	ctx := t.Context()
	lossless(t, c, func() {
		kubectl(t, c, "drain", last.Name, "--ignore-daemonsets")
		movedTo(t, c, others...)
		must(t, last.Reboot(ctx))
		must(t, c.Rebooted(ctx, last))
		kubectl(t, c, "uncordon", last.Name)
		for _, n := range others {
			kubectl(t, c, "drain", n.Name, "--ignore-daemonsets")
		}
		movedTo(t, c, last)
		kubectl(t, c, "uncordon", others[0].Name, others[1].Name)
	})
	talk(t, c)
}

// leaveAndJoin drains and deletes the last node and turns it off, after which the
// others have nothing of it. Turned on, it joins as a new one.
func leaveAndJoin(t *testing.T, c *cluster.Cluster, others []*cluster.Node, last *cluster.Node) {
	ctx := t.Context()
	cidrs, err := c.PodCIDRs(ctx, last.Name)
	must(t, err)
	former := []string{cidrs[0].String(), cidrs[0].Addr().String(), last.IP4.String()}
	for _, n := range others {
		if entries := entriesOf(t, n, former); len(entries) == 0 {
			t.Fatalf("%s has no entries for %s, which would have to go", n.Name, last.Name)
		}
	}
	lossless(t, c, func() {
		kubectl(t, c, "drain", last.Name, "--ignore-daemonsets")
		movedTo(t, c, others...)
		kubectl(t, c, "delete", "node", last.Name)
		must(t, last.PowerOff())
		for _, n := range others {
			eventually(t, func(context.Context) error {
				if entries := entriesOf(t, n, former); len(entries) > 0 {
					return fmt.Errorf("%s has entries of %s: %s", n.Name, last.Name, strings.Join(entries, "; "))
				}
				return nil
			})
		}
		must(t, last.PowerOn(ctx))
		must(t, last.Registered(ctx))
		must(t, c.Rebooted(ctx, last))
		must(t, c.PodsReady(ctx, api.Namespace, cluster.FlannelPods))
		must(t, c.PodsReady(ctx, metav1.NamespaceDefault, cluster.WebPods))
		for _, n := range others {
			kubectl(t, c, "drain", n.Name, "--ignore-daemonsets")
		}
		movedTo(t, c, last)
		kubectl(t, c, "uncordon", others[0].Name, others[1].Name)
	})
	talk(t, c)
}

// entriesOf returns the routes, neighbours and FDB entries of a node that contain
// one of the texts.
func entriesOf(t *testing.T, n *cluster.Node, texts []string) (found []string) {
	t.Helper()
	for _, command := range []string{"ip route show table all dev flannel.1", "ip neigh show dev flannel.1", "bridge fdb show dev flannel.1"} {
		out, err := n.Run(t.Context(), strings.Fields(command)...)
		must(t, err)
		for line := range strings.Lines(out) {
			for _, text := range texts {
				if strings.Contains(line+" ", text+" ") {
					found = append(found, strings.TrimSpace(line))
					break
				}
			}
		}
	}
	return found
}

// TestClusterChangesBackend changes the ConfigMap of running nodes, as
// Documentation/configuration.md says: kubelet updates the file, nodes wait for
// each other, two try it, the third follows. Packets may be lost from the first
// trial until the change is settled on all nodes, and only then.
func TestClusterChangesBackend(t *testing.T) {
	c := start(t, cluster.Options{Nodes: 3})
	for _, change := range []struct{ name, to, device string }{
		{"vxlan to host-gw", "host-gw", "eth0"},
		{"host-gw to vxlan", "vxlan", "flannel.1"},
	} {
		t.Run(change.name, func(t *testing.T) {
			began := time.Now()
			var changed, ended time.Time
			losses := flood(t, c, func() {
				must(t, c.ApplyFile(t.Context(), c.Manifest(), `"Type": "vxlan"`, `"Type": "`+change.to+`"`))
				routesUse(t, c, change.device)
				changed = time.Now()
				settled(t, c)
				ended = time.Now()
			})
			tried := firstTrial(t, c, began)
			t.Logf("the first node tried it after %v; %v later all routes were the new ones",
				tried.Sub(began).Round(time.Second), changed.Sub(tried).Round(time.Millisecond))
			for _, r := range losses {
				// A ping that is on its way when the first node changes may be lost.
				if r.Lost > 0 && (r.FirstLost.Add(r.Worst).Before(tried) || r.LastLost.After(ended)) {
					t.Errorf("pings were lost from %v to %v; the change was from %v to %v", r.FirstLost, r.LastLost, tried, ended)
				}
			}
			talk(t, c)
			lossless(t, c, func() { must(t, c.Nodes[0].KillDaemon(t.Context(), syscall.SIGKILL)) })
		})
	}
}

// ofAChange is how long a change of the configuration may take: kubelet updates
// files within minutes, nodes wait for each other for two minutes, and four pairs
// of nodes try it for two minutes each.
const ofAChange = 30 * time.Minute

// routesUse waits until each node's routes to the pods of all others use a device.
func routesUse(t *testing.T, c *cluster.Cluster, device string) {
	t.Helper()
	pods := webPods(t, c)
	for _, n := range c.Nodes {
		_, err := machine.Until(t.Context(), ofAChange, func(ctx context.Context) error {
			for _, p := range pods {
				out, err := n.Run(ctx, "ip", "route", "get", p.IP4.String())
				if err != nil {
					return err
				}
				if p.Node != n && !slices.Contains(strings.Fields(out), device) {
					return fmt.Errorf("%s reaches %s by %s", n.Name, p.Node.Name, out)
				}
			}
			return nil
		})
		must(t, err)
	}
}

// settled waits until no node's configuration is pending.
func settled(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	for _, n := range c.Nodes {
		_, err := machine.Until(t.Context(), ofAChange, func(ctx context.Context) error {
			lines, err := metrics(ctx, n)
			if err == nil && !slices.Contains(lines, "flanneld_config_pending 0") {
				err = errors.New("the configuration of " + n.Name + " is pending")
			}
			return err
		})
		must(t, err)
	}
}

// metrics returns the lines of flanneld's metrics on a node.
func metrics(ctx context.Context, n *cluster.Node) ([]string, error) {
	_, body, err := n.Get(ctx, fmt.Sprintf("http://127.0.0.1:%d/metrics", lab.HealthPort))
	return strings.Split(body, "\n"), err
}

// firstTrial returns when the first node tried a configuration after a time.
func firstTrial(t *testing.T, c *cluster.Cluster, after time.Time) (first time.Time) {
	t.Helper()
	for _, p := range flannelPods(t, c) {
		log := kubectl(t, c, "-n", api.Namespace, "logs", p.Name, "-c", "kube-flannel")
		for _, r := range logtest.Parse(log).With("cause=config-trial") {
			at, err := time.Parse(time.RFC3339Nano, r["time"])
			must(t, err)
			if at.After(after) && (first.IsZero() || at.Before(first)) {
				first = at
			}
		}
	}
	if first.IsZero() {
		t.Fatal("no node has tried the configuration")
	}
	return first
}
