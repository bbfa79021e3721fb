//go:build cluster

package cluster_test

import (
	"context"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flannel/cmd/flannel-lab/cluster"
	"flannel/cmd/flannel-lab/machine"
	api "flannel/internal/test/kubetest/cluster"
)

func TestMain(m *testing.M) {
	cluster.Init()
	os.Exit(m.Run())
}

// start creates a cluster with flannel by the manifest, and a web server on each
// node. Each pair of edits is a text in the manifest and its replacement.
func start(t *testing.T, o cluster.Options, edits ...string) *cluster.Cluster {
	t.Helper()
	ctx := t.Context()
	c := create(t, o)
	must(t, c.Install(ctx, edits...))
	for _, p := range flannelPods(t, c) {
		if n := restarts(p); n > 0 {
			t.Errorf("%s was restarted %d times before it was ready", p.Name, n)
		}
	}
	must(t, c.ApplyPods(ctx))
	return c
}

// create creates a cluster without a pod network.
func create(t *testing.T, o cluster.Options) *cluster.Cluster {
	t.Helper()
	c, err := cluster.New(t.Context(), o)
	must(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.Logs(context.Background()))
		}
		if err := c.Close(); err != nil {
			t.Error("close the cluster:", err)
		}
	})
	return c
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func webPods(t *testing.T, c *cluster.Cluster) []*cluster.Pod {
	t.Helper()
	pods, err := c.Pods(t.Context(), metav1.NamespaceDefault, cluster.WebPods)
	must(t, err)
	if len(pods) != len(c.Nodes) {
		t.Fatalf("%d pods on %d nodes", len(pods), len(c.Nodes))
	}
	return pods
}

func flannelPods(t *testing.T, c *cluster.Cluster) []*cluster.Pod {
	t.Helper()
	pods, err := c.Pods(t.Context(), api.Namespace, cluster.FlannelPods)
	must(t, err)
	return pods
}

func restarts(p *cluster.Pod) (n int32) {
	for _, s := range p.Object.Status.ContainerStatuses {
		n += s.RestartCount
	}
	return n
}

// talk checks that every pod reaches every pod, and that each node's pods reach
// the Service.
func talk(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	ctx := t.Context()
	pods := webPods(t, c)
	service, err := c.ServiceIP(ctx, "web")
	must(t, err)
	for _, from := range pods {
		for _, to := range pods {
			for _, at := range []netip.Addr{to.IP4, to.IP6} {
				if from == to || !at.IsValid() {
					continue
				}
				if _, err := from.Reach(ctx, at, machine.Longest); err != nil {
					t.Errorf("pod on %s to pod on %s: %v", from.Node.Name, to.Node.Name, err)
				}
				// The request's source is the pod, not its node.
				source := map[bool]netip.Addr{false: from.IP4, true: from.IP6}[at.Is6()]
				if out := get(t, c, from, netip.AddrPortFrom(at, 8080)); !strings.Contains(out, source.String()) {
					t.Errorf("%s, with the address %s, appears at %s as %q", from.Name, source, to.Name, out)
				}
			}
		}
		eventually(t, func(ctx context.Context) error { // kube-proxy learns of the endpoints after the pods are ready
			_, err := request(ctx, c, from, netip.AddrPortFrom(service, 80))
			return err
		})
	}
}

// request requests a page from inside of a pod's container.
func request(ctx context.Context, c *cluster.Cluster, from *cluster.Pod, at netip.AddrPort) (string, error) {
	return c.Kubectl(ctx, "exec", from.Name, "--", "/pod", "get", "http://"+at.String()+"/")
}

// get is request, which must succeed.
func get(t *testing.T, c *cluster.Cluster, from *cluster.Pod, at netip.AddrPort) string {
	t.Helper()
	out, err := request(t.Context(), c, from, at)
	if err != nil {
		t.Errorf("pod on %s to %s: %v", from.Node.Name, at, err)
	}
	return out
}

// lossless does something while the pods of the first two nodes ping each other, in
// both directions, and fails if a ping is lost.
func lossless(t *testing.T, c *cluster.Cluster, do func()) {
	t.Helper()
	for _, r := range flood(t, c, do) {
		if r.Lost > 0 {
			t.Errorf("pings were lost: %s", r)
		}
	}
}

// flood does something while the pods of the first two nodes ping each other, in
// both directions, and returns what became of the pings.
func flood(t *testing.T, c *cluster.Cluster, do func()) (results []machine.FloodResult) {
	t.Helper()
	pods := webPods(t, c)
	var floods []*machine.Flood
	for _, pair := range [][2]*cluster.Pod{{pods[0], pods[1]}, {pods[1], pods[0]}} {
		f, err := pair[0].Flood(pair[1].IP(), 200)
		must(t, err)
		floods = append(floods, f)
	}
	do()
	results = make([]machine.FloodResult, len(floods))
	var stops errgroup.Group
	for i, f := range floods {
		stops.Go(func() (err error) {
			results[i], err = f.Stop() // waits for late answers
			return err
		})
	}
	must(t, stops.Wait())
	for i, r := range results {
		t.Logf("pings from %s: %s, longest outage %v", pods[i].Node.Name, r, r.Outage.Round(time.Millisecond))
		if r.Sent == 0 {
			t.Errorf("no ping was sent from %s", pods[i].Node.Name)
		}
	}
	return results
}

// TestClusterLife is the life of a cluster with the manifest as it is.
func TestClusterLife(t *testing.T) {
	c := start(t, cluster.Options{Nodes: 3})
	ctx := t.Context()
	t.Run("pods and the Service answer", func(t *testing.T) { talk(t, c) })
	t.Run("the daemon is killed", func(t *testing.T) {
		lossless(t, c, func() { must(t, c.Nodes[0].KillDaemon(ctx, syscall.SIGKILL)) })
		talk(t, c)
	})
	t.Run("the daemon is stopped", func(t *testing.T) {
		lossless(t, c, func() { must(t, c.Nodes[1].KillDaemon(ctx, syscall.SIGTERM)) })
	})
	t.Run("the DaemonSet is restarted", func(t *testing.T) {
		lossless(t, c, func() {
			for _, verb := range []string{"restart", "status"} {
				_, err := c.Kubectl(ctx, "-n", api.Namespace, "rollout", verb, "daemonset", "kube-flannel-ds")
				must(t, err)
			}
		})
		talk(t, c)
	})
	t.Run("kubelet and containerd are restarted", func(t *testing.T) {
		lossless(t, c, func() {
			for _, name := range []string{cluster.Kubelet, cluster.Containerd} {
				must(t, c.Nodes[0].StopService(ctx, name, syscall.SIGTERM))
			}
			for _, name := range []string{cluster.Containerd, cluster.Kubelet} {
				must(t, c.Nodes[0].StartService(ctx, name))
			}
			pod := webPods(t, c)[0].Name
			_, err := machine.Until(ctx, machine.Longest, func(ctx context.Context) error {
				_, err := c.Kubectl(ctx, "exec", pod, "--", "/pod", "get", "http://127.0.0.1:8080/")
				return err
			})
			must(t, err)
		})
		talk(t, c)
	})
	t.Run("the API server is away", func(t *testing.T) { withoutAPI(t, c) })
	t.Run("a node is rebooted", func(t *testing.T) { reboot(t, c) })
	t.Run("a Node is deleted and joins with another podCIDR", func(t *testing.T) { rejoin(t, c) })
}

// withoutAPI kills the API server, and a daemon meanwhile, whose routes stay.
func withoutAPI(t *testing.T, c *cluster.Cluster) {
	ctx := t.Context()
	lossless(t, c, func() {
		must(t, c.KillAPIServer())
		pid, err := c.Nodes[0].Daemon()
		must(t, err)
		must(t, syscall.Kill(pid, syscall.SIGKILL))
		_, err = machine.Until(ctx, machine.Longest, func(context.Context) error {
			now, err := c.Nodes[0].Daemon()
			if err == nil && now == pid {
				err = os.ErrExist
			}
			return err
		})
		must(t, err)
		must(t, c.StartAPIServer())
		must(t, c.Ready(ctx))
		must(t, c.NodesReady(ctx))
		must(t, c.PodsReady(ctx, api.Namespace, cluster.FlannelPods))
	})
	talk(t, c)
}

// reboot turns the last node off and on. The others lose nothing, and its pods
// reach them again.
func reboot(t *testing.T, c *cluster.Cluster) {
	ctx := t.Context()
	last := c.Nodes[len(c.Nodes)-1]
	lossless(t, c, func() {
		must(t, last.Reboot(ctx))
		must(t, c.Rebooted(ctx, last))
	})
	talk(t, c)
}

// rejoin deletes the Node of the last node, whose kubelet registers it again. The
// controller manager then assigns another podCIDR. The pod that was there keeps
// its address until it is deleted, and the next one gets an address of the new
// podCIDR.
func rejoin(t *testing.T, c *cluster.Cluster) {
	ctx := t.Context()
	last := c.Nodes[len(c.Nodes)-1]
	before, err := last.Object(ctx)
	must(t, err)
	lossless(t, c, func() {
		must(t, last.StopService(ctx, cluster.Kubelet, syscall.SIGTERM))
		_, err = c.Kubectl(ctx, "delete", "node", last.Name)
		must(t, err)
		must(t, last.StartService(ctx, cluster.Kubelet))
		must(t, last.Registered(ctx))
		cidrs, err := c.PodCIDRs(ctx, last.Name)
		must(t, err)
		if old := netip.MustParsePrefix(before.Spec.PodCIDR); slices.Contains(cidrs, old) {
			t.Fatalf("the new Node has the podCIDR of the old one, %s", old)
		}
		_, err = c.Kubectl(ctx, "delete", "pods", "-l", cluster.WebPods, "--field-selector=spec.nodeName="+last.Name)
		must(t, err)
		must(t, c.PodsReady(ctx, metav1.NamespaceDefault, cluster.WebPods))
		must(t, c.PodsReady(ctx, api.Namespace, cluster.FlannelPods))
		must(t, c.NodesReady(ctx))
		p := webPods(t, c)[len(c.Nodes)-1]
		if !cidrs[0].Contains(p.IP4) {
			t.Errorf("the pod on %s has the address %s, which is not in %s", last.Name, p.IP4, cidrs[0])
		}
	})
	talk(t, c)
}

// TestClusterConfigurations has other network configurations, images and modes of
// kube-proxy.
func TestClusterConfigurations(t *testing.T) {
	for name, config := range map[string]struct {
		options cluster.Options
		edits   []string
	}{
		"host-gw": {edits: []string{`"Type": "vxlan"`, `"Type": "host-gw"`}},
		"nftables": {cluster.Options{ProxyMode: "nftables"}, []string{"flanneld:dev", "flanneld:dev-nftables",
			`"EnableNFTables": false`, `"EnableNFTables": true, "Guard": "enforce"`}},
		"IPv4 and IPv6": {options: cluster.Options{Dual: true}},
		"IPv6 alone":    {options: cluster.Options{IPv6Only: true}},
	} {
		t.Run(name, func(t *testing.T) {
			c := start(t, config.options, config.edits...)
			talk(t, c)
			lossless(t, c, func() { must(t, c.Nodes[0].KillDaemon(t.Context(), syscall.SIGKILL)) })
		})
	}
}
