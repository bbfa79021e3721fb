package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flannel/cmd/flannel-lab/cluster"
	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/machine"
	api "flannel/internal/test/kubetest/cluster"
)

// clusterShow is a show with a cluster instead of a lab: its steps are the methods below, and
// use neither show.lab nor show.pods.
type clusterShow struct {
	*show
	cluster *cluster.Cluster
	pods    []*cluster.Pod // the web server of each node, in the order of the nodes; findPods sets it
}

// RunCluster runs the demo in a Kubernetes cluster and writes it to out. The first
// step that fails ends the demo with its error.
func RunCluster(ctx context.Context, out Output, o cluster.Options) error {
	s, err := newShow(out, lab.Options{}, "{}") // no lab, and no backend: the manifest has it
	if err != nil {
		return err
	}
	d := &clusterShow{show: s}
	start := time.Now()
	d.say("A Kubernetes cluster on this machine: kube-apiserver, controller manager and scheduler, and %d nodes with\n"+
		"kubelet, containerd, runc and kube-proxy. The machine's own network is not changed.", o.Nodes)
	if d.cluster, err = cluster.New(ctx, o); err != nil {
		return err
	}
	defer d.cluster.Close() // after an error; what it returns a second time does not matter
	err = d.play(ctx, []step{
		{"The nodes have registered. Without a pod network they are not ready", d.nodes, false},
		{"kubectl apply -f kube-flannel.yml, with the image of this tree", d.install, false},
		{"A web server on each node, and a Service", d.web, false},
		{"Pods reach the pods of both nodes, and the Service", d.talk, false},
		{"flanneld is killed under traffic: kubelet starts it again, and no packet is lost", d.kill, false},
		{"A node is turned off and on: its pods come back", d.reboot, false},
	}, func() string { return d.cluster.Logs(ctx) })
	if err != nil {
		return err
	}
	if err := d.cluster.Close(); err != nil {
		return fmt.Errorf("remove the cluster: %w", err)
	}
	d.say("\n%s in %.0f seconds, and everything is removed. To experiment with such a cluster: flannel-lab cluster up",
		d.bold("All steps succeeded"), time.Since(start).Seconds())
	return nil
}

// kubectl shows a command of kubectl and its output.
func (d *clusterShow) kubectl(ctx context.Context, args ...string) (string, error) {
	d.prompt("", "kubectl "+strings.Join(args, " "))
	out, err := d.cluster.Kubectl(ctx, args...)
	for line := range strings.Lines(out) {
		d.say("     %s", strings.TrimRight(line, " \n"))
	}
	return out, err
}

func (d *clusterShow) nodes(ctx context.Context) error {
	_, err := d.kubectl(ctx, "get", "nodes")
	return err
}

// install applies the manifest, and waits until all nodes are ready. Most of this time
// passes because kubelet looks for a pod network only every few seconds.
func (d *clusterShow) install(ctx context.Context) error {
	d.prompt("", "kubectl apply -f Documentation/kube-flannel.yml")
	begin := time.Now()
	if err := d.cluster.Install(ctx); err != nil {
		return err
	}
	took := time.Since(begin)
	if _, err := d.kubectl(ctx, "get", "pods", "-n", api.Namespace, "-o", "wide"); err != nil {
		return err
	}
	if _, err := d.kubectl(ctx, "get", "nodes"); err != nil {
		return err
	}
	d.result("all nodes are ready after %.1f s", took.Seconds())
	return nil
}

// web creates a web server on each node, and a Service.
func (d *clusterShow) web(ctx context.Context) error {
	begin := time.Now()
	if err := d.cluster.ApplyPods(ctx); err != nil {
		return err
	}
	if _, err := d.kubectl(ctx, "get", "pods", "-o", "wide"); err != nil {
		return err
	}
	d.result("the pods are ready after %.1f s", time.Since(begin).Seconds())
	return d.findPods(ctx)
}

// findPods sets d.pods. It must be called again after a reboot: the pods of the node
// then have other network namespaces.
func (d *clusterShow) findPods(ctx context.Context) (err error) {
	d.pods, err = d.cluster.Pods(ctx, metav1.NamespaceDefault, cluster.WebPods)
	if err == nil && len(d.pods) != len(d.cluster.Nodes) {
		err = fmt.Errorf("%d pods on %d nodes", len(d.pods), len(d.cluster.Nodes))
	}
	return err
}

// talk requests a page from the pod of the last node and from the Service, and pings
// all pods from all others.
func (d *clusterShow) talk(ctx context.Context) error {
	service, err := d.cluster.ServiceIP(ctx, "web")
	if err != nil {
		return err
	}
	from := d.pods[0]
	for _, url := range []string{
		"http://" + netip.AddrPortFrom(d.pods[len(d.pods)-1].IP4, 8080).String() + "/",
		"http://" + service.String() + "/",
	} {
		get := []string{"exec", from.Name, "--", "/pod", "get", url} // /pod is the program of the pod's image
		// First unseen, until it succeeds: kube-proxy may learn of ready pods later.
		if _, err := machine.Until(ctx, timeout, func(ctx context.Context) error {
			_, err := d.cluster.Kubectl(ctx, get...)
			return err
		}); err != nil {
			return err
		}
		out, err := d.kubectl(ctx, get...)
		if err != nil {
			return err
		}
		if !strings.Contains(out, "web-") {
			return fmt.Errorf("no web server answers at %s", url)
		}
	}
	pings := 0
	for _, from := range d.pods {
		for _, to := range d.pods {
			if from == to {
				continue
			}
			if _, err := from.Reach(ctx, to.IP4, timeout); err != nil {
				return fmt.Errorf("%s to %s: %w", from.Name, to.Name, err)
			}
			pings++
		}
	}
	d.result("%d of %d pings are answered", pings, pings)
	return nil
}

// kill kills the daemon of the first node while the pod there pings that of the second
// node. KillDaemon returns when kubelet has started flanneld again and it is ready.
func (d *clusterShow) kill(ctx context.Context) error {
	flood, err := d.pods[0].Flood(d.pods[1].IP4, 500) // pings a second
	if err != nil {
		return err
	}
	d.prompt(d.cluster.Nodes[0].Name, "kill -9 $(pidof flanneld)")
	begin := time.Now()
	err = d.cluster.Nodes[0].KillDaemon(ctx, syscall.SIGKILL)
	took := time.Since(begin)
	r, floodErr := flood.Stop()
	if err := errors.Join(err, floodErr); err != nil {
		return err
	}
	if r.Lost > 0 {
		return fmt.Errorf("of the pings between the pods: %s (longest outage %v)", r, r.Outage)
	}
	if _, err := d.kubectl(ctx, "get", "pods", "-n", api.Namespace); err != nil {
		return err
	}
	d.result("flanneld is back after %.1f s; 500 pings a second between pods of both nodes meanwhile: %s", took.Seconds(), r)
	return nil
}

// reboot reboots the last node, and waits until its pod answers that of the first.
func (d *clusterShow) reboot(ctx context.Context) error {
	last := d.cluster.Nodes[len(d.cluster.Nodes)-1]
	d.prompt(last.Name, "reboot")
	begin := time.Now()
	if err := last.Reboot(ctx); err != nil {
		return err
	}
	if err := d.cluster.Rebooted(ctx, last); err != nil {
		return err
	}
	if err := d.findPods(ctx); err != nil {
		return err
	}
	to := d.pods[len(d.pods)-1]
	if _, err := d.pods[0].Reach(ctx, to.IP4, machine.Longest); err != nil {
		return err
	}
	if _, err := d.kubectl(ctx, "get", "pods", "-o", "wide"); err != nil {
		return err
	}
	d.result("%.1f s after the reboot %s answers again", time.Since(begin).Seconds(), to.Name)
	return nil
}
