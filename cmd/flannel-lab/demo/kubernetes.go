package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/machine"
)

// clusterNodes shows the Nodes with their podCIDRs, and that the machines reach each
// other without flannel.
func (d *show) clusterNodes(ctx context.Context) error {
	for _, n := range d.lab.Nodes {
		node, err := d.lab.Kube.Client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		d.say("   %s  %s  podCIDRs %s", n.Name, lab.Join(n.IP4, n.IP6), strings.Join(node.Spec.PodCIDRs, " "))
	}
	n := d.lab.Nodes[0]
	if _, err := d.run(ctx, n.Name, n.Namespaces, "ping", "-q", "-c1", "-W2", d.lab.Nodes[1].Name); err != nil {
		return err
	}
	v, err := d.lab.Kube.Client.Discovery().ServerVersion()
	if err != nil {
		return err
	}
	d.result("kube-apiserver %s answers at %s; a controller has assigned a podCIDR to each Node", v.GitVersion,
		d.lab.Kube.Endpoint())
	return nil
}

// clusterConfig puts the network configuration on every node, as the ConfigMap of the
// manifest does.
func (d *show) clusterConfig(ctx context.Context) error {
	config := d.lab.Config(d.config)
	d.say("   net-conf.json = %s", config)
	return d.lab.SetConfig(ctx, config)
}

// annotations shows what flanneld has written to the Nodes, and fails if it has not
// marked one as its own.
func (d *show) annotations(ctx context.Context) error {
	leases, err := d.lab.Leases(ctx)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(leases)) {
		var annotations map[string]string
		if err := json.Unmarshal([]byte(leases[name]), &annotations); err != nil {
			return err
		}
		d.say("   %s", name)
		for _, key := range slices.Sorted(maps.Keys(annotations)) {
			d.say("     %s: %s", key, annotations[key])
		}
		if annotations["flannel.alpha.coreos.com/kube-subnet-manager"] != "true" {
			return fmt.Errorf("%s is not annotated", name)
		}
	}
	d.result("%d Nodes, each annotated by its own flanneld, which cannot change the others", len(leases))
	return nil
}

// loseAPI kills the API server. Meanwhile a deleted route is restored, and no
// packet is lost.
func (d *show) loseAPI(ctx context.Context) error {
	return d.whilePinging(func() error { return d.withoutAPI(ctx) })
}

// withoutAPI kills the API server, repairs drift, and starts the server again with the
// same data.
func (d *show) withoutAPI(ctx context.Context) error {
	last := d.lab.Nodes[len(d.lab.Nodes)-1]
	subnets, err := subnetsOf(last) // one at least, IPv4 first
	if err != nil {
		return err
	}
	d.prompt("infra", "kill -9 $(pidof kube-apiserver)")
	if err := d.lab.Kube.Kill(); err != nil {
		return err
	}
	time.Sleep(time.Second)
	// Not the route that the pings of whilePinging use, to the second node.
	if len(d.lab.Nodes) > 2 {
		n := d.lab.Nodes[0]
		if _, err := d.run(ctx, n.Name, n.Namespaces, "ip", "route", "del", subnets[0].String()); err != nil {
			return err
		}
		if _, err := machine.Until(ctx, timeout, func(context.Context) error {
			return hasRoute(n, subnets[0])
		}); err != nil {
			return err
		}
		d.result("a route that was deleted while there was no API server is restored")
	}
	begin := time.Now()
	if err := d.lab.Kube.Start(ctx); err != nil {
		return err
	}
	d.result("the API server is back after %v", time.Since(begin).Round(time.Millisecond))
	return nil
}

// loseNode drains and deletes the last node and registers it again. Another machine gets
// the node's podCIDR meanwhile. So the node gets another podCIDR, its flanneld, which keeps
// running, joins again with that one, and a new pod starts on its old bridge.
func (d *show) loseNode(ctx context.Context) error {
	first, last := d.lab.Nodes[0], d.lab.Nodes[len(d.lab.Nodes)-1]
	former, err := subnetsOf(last)
	if err != nil {
		return err
	}
	d.prompt("kubectl", "drain "+last.Name)
	for _, p := range last.Pods() { // there is no kubelet that would delete them
		if err := p.Delete(ctx); err != nil {
			return err
		}
	}
	d.prompt("kubectl", "delete node "+last.Name)
	begin := time.Now()
	if err := d.lab.Kube.Unregister(ctx, last); err != nil {
		return err
	}
	// flanneld may still have to reconnect after the outage in the previous step.
	if _, err := machine.Until(ctx, timeout, func(context.Context) error {
		return gone(first, former[0]) // [0] is IPv4, here and below
	}); err != nil {
		return err
	}
	d.result("%s has no route to %s after %v", first.Name, former[0], time.Since(begin).Round(time.Millisecond))
	if err := d.takeSubnet(ctx, former[0]); err != nil {
		return err
	}
	begin = time.Now()
	if err := d.lab.Kube.Register(ctx, last); err != nil {
		return err
	}
	var current []netip.Prefix
	if _, err := machine.Until(ctx, timeout, func(context.Context) (err error) {
		if current, err = subnetsOf(last); err != nil {
			return err
		}
		if current[0] == former[0] {
			return fmt.Errorf("%s still has %s", last.Name, former[0])
		}
		return hasRoute(first, current[0])
	}); err != nil {
		return err
	}
	d.result("registered again: %s has %s, to which %s has a route after %v, without a restart", last.Name,
		lab.Join(current...), first.Name, time.Since(begin).Round(time.Millisecond))
	pod, err := last.AddPod(ctx, "back")
	if err != nil {
		return err
	}
	if _, err := d.pods[0].Reach(ctx, pod.IP4, timeout); err != nil {
		return err
	}
	d.result("a new pod there has %s on the same bridge, and %s reaches it", pod.IP4, d.pods[0].Name)
	return nil
}

// takeSubnet registers further Nodes, without a machine behind them, until one has the
// subnet. In a cluster with many nodes this is not needed: there, the controller manager
// gives a Node that was deleted and registered again another podCIDR.
func (d *show) takeSubnet(ctx context.Context, subnet netip.Prefix) error {
	for i := len(d.lab.Nodes) + 1; ; i++ {
		name := fmt.Sprintf("node%d", i)
		if err := d.lab.Kube.AddNode(ctx, name); err != nil {
			return err
		}
		subnets, err := d.lab.Kube.PodCIDRs(ctx, name)
		if err != nil {
			return err
		}
		if slices.Contains(subnets, subnet) {
			d.say("   another machine, %s, joins the cluster meanwhile, and gets %s", name, subnet)
			return nil
		}
	}
}

// gone returns an error while n has a route to the prefix.
func gone(n *lab.Node, to netip.Prefix) error {
	if err := hasRoute(n, to); err == nil {
		return fmt.Errorf("%s still has a route to %s", n.Name, to)
	}
	return nil
}
