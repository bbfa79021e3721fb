package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/machine"
)

// nodes shows the nodes' addresses, and that they reach each other without flannel.
func (d *show) nodes(ctx context.Context) error {
	for _, n := range d.lab.Nodes {
		d.say("   %s  %s", n.Name, lab.Join(n.IP4, n.IP6))
	}
	n := d.lab.Nodes[0]
	if _, err := d.run(ctx, n.Name, n.Namespaces, "ping", "-q", "-c1", "-W2", d.lab.Nodes[1].Name); err != nil {
		return err
	}
	d.result("etcd answers at %s", d.lab.Etcd.Endpoint())
	return nil
}

// configure writes the network configuration to etcd. The paths that are shown here and in
// leases are those of lab.Options.Prefix, which the demo leaves at its default.
func (d *show) configure(ctx context.Context) error {
	config := d.lab.Config(d.config)
	d.say("   /coreos.com/network/config = %s", config)
	return d.lab.SetConfig(ctx, config)
}

// start starts flanneld on one node after the other. Each is ready alone: a node does
// not wait for others.
func (d *show) start(ctx context.Context) error {
	for _, n := range d.lab.Nodes {
		d.prompt(n.Name, n.Program()+" "+strings.Join(n.Args(), " "))
		begin := time.Now()
		if err := n.Start(); err != nil {
			return err
		}
		if err := n.Ready(ctx); err != nil {
			return err
		}
		subnets, err := subnetsOf(n)
		if err != nil {
			return err
		}
		env, err := n.SubnetEnv()
		if err != nil {
			return err
		}
		d.result("%s is ready after %v: its pods get addresses from %s, with an MTU of %s bytes",
			n.Name, time.Since(begin).Round(time.Millisecond), lab.Join(subnets...), env["FLANNEL_MTU"])
	}
	return nil
}

// leases shows the leases as etcd has them, and fails if a node's address is in none.
func (d *show) leases(ctx context.Context) error {
	leases, err := d.lab.Leases(ctx)
	if err != nil {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(leases)) {
		d.say("   /coreos.com/network/subnets/%s\n     = %s", key, leases[key])
	}
	for _, n := range d.lab.Nodes {
		if !slices.ContainsFunc(slices.Collect(maps.Values(leases)), func(value string) bool {
			var lease struct{ PublicIP, PublicIPv6 netip.Addr }
			return json.Unmarshal([]byte(value), &lease) == nil &&
				(lease.PublicIP == n.IP4 || lease.PublicIPv6 == n.IP6)
		}) {
			return fmt.Errorf("no lease has the address of %s", n.Name)
		}
	}
	d.result("%d leases, one for each node", len(leases))
	return nil
}

// device is the name of the VXLAN device.
func (d *show) device() string { return fmt.Sprintf("flannel.%d", d.backend.VNI) }

// kernel shows the entries in the kernel of node1, with the tools that operators use,
// and fails if none of them leads to one of the other nodes.
func (d *show) kernel(ctx context.Context) error {
	n := d.lab.Nodes[0]
	for _, peer := range d.lab.Nodes[1:] {
		subnets, err := subnetsOf(peer)
		if err != nil {
			return err
		}
		for _, subnet := range subnets { // the route to the last node may be added only now
			if _, err := machine.Until(ctx, timeout,
				func(context.Context) error { return hasRoute(n, subnet) }); err != nil {
				return err
			}
		}
	}
	commands := [][]string{{"ip", "route"}}
	if d.options.Family.Has6() {
		// Only the pod network; the whole table has many link-local routes.
		commands = append(commands, []string{"ip", "-6", "route", "show", "root", "fd05::/48"})
	}
	if d.backend.Type == "vxlan" {
		commands = append(commands, []string{"ip", "neigh", "show", "dev", d.device(), "nud", "permanent"},
			[]string{"bridge", "fdb", "show", "dev", d.device()})
	}
	var out string
	for _, command := range commands {
		more, err := d.run(ctx, n.Name, n.Namespaces, command...)
		if err != nil {
			return err
		}
		out += more
	}
	for _, peer := range d.lab.Nodes[1:] {
		if !strings.Contains(out, peer.IP4.String()) {
			return fmt.Errorf("no entry leads to %s (%s)", peer.Name, peer.IP4)
		}
	}
	if d.backend.Type == "vxlan" {
		d.result("route: to the tunnel address of the other node, through the tunnel; neighbour: its MAC; FDB: the node that has this MAC")
	} else {
		d.result("a route to the subnet of each other node, through that node")
	}
	return nil
}

// makePods creates one pod on each node by calling the CNI plugins, as a container
// runtime does.
func (d *show) makePods(ctx context.Context) error {
	for i, n := range d.lab.Nodes {
		begin := time.Now()
		p, err := n.AddPod(ctx, fmt.Sprintf("pod%d", i+1))
		if err != nil {
			return err
		}
		d.pods = append(d.pods, p)
		chain := "flannel → bridge → host-local"
		if n.Windows != nil {
			chain = "flannel.exe → " + map[string]string{"vxlan": "win-overlay.exe",
				"host-gw": "win-bridge.exe"}[d.backend.Type] + " → host-local.exe"
		}
		d.result("%s on %s has %s (%s, %v)", p.Name, n.Name, lab.Join(p.IP4, p.IP6), chain,
			time.Since(begin).Round(time.Millisecond))
	}
	return nil
}

// pings shows one ping for each family, and makes one between all pairs of pods in
// both directions. It reports all pairs that fail, not only the first.
func (d *show) pings(ctx context.Context) error {
	p, last := d.pods[0], d.pods[len(d.pods)-1]
	for _, at := range []netip.Addr{last.IP4, last.IP6} {
		if !at.IsValid() {
			continue
		}
		if _, err := d.run(ctx, p.Name, p.Namespaces, "ping", "-c2", "-i0.2", "-W2", at.String()); err != nil {
			return err
		}
	}
	pairs := 0
	var errs []error
	for _, from := range d.pods {
		for _, to := range d.pods {
			for _, at := range []netip.Addr{to.IP4, to.IP6} {
				if from == to || !at.IsValid() {
					continue
				}
				pairs++
				if err := from.Ping(ctx, at); err != nil {
					errs = append(errs, fmt.Errorf("%s to %s: %w", from.Name, to.Name, err))
				}
			}
		}
	}
	if errs == nil {
		d.result("%d of %d pings are answered", pairs, pairs)
	}
	return errors.Join(errs...)
}

// transfer sends data through one TCP connection for a second, and fails if not all
// of it arrives. Large packets find problems with the MTU, which pings do not.
func (d *show) transfer(ctx context.Context) error {
	from, to := d.pods[0], d.pods[1]
	moved, err := machine.Transfer(ctx, from.Namespaces, to.Namespaces, to.IP(), time.Second)
	if err != nil {
		return err
	}
	d.result("%s → %s, one TCP connection: %.2f GB in %.1f s, %.1f Gbit/s, complete",
		from.Name, to.Name, float64(moved.Bytes)/1e9, moved.Time.Seconds(), moved.Gbit())
	return nil
}

// masquerade connects from a pod to a server outside of the cluster, which this process
// is, in the lab's machine around the nodes. It fails if the server sees another address
// than that of the pod's node.
func (d *show) masquerade(ctx context.Context) error {
	p := d.pods[0]
	l, err := d.lab.Infra.Listen("tcp", lab.Outside4.String()+":80")
	if err != nil {
		return err
	}
	defer l.Close()
	d.prompt(p.Name, "connect to "+l.Addr().String()+" outside of the cluster")
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	c, err := p.Dial(ctx, "tcp", l.Addr().String())
	if err != nil {
		return err
	}
	defer c.Close()
	seen, err := l.Accept()
	if err != nil {
		return err
	}
	defer seen.Close()
	from, err := netip.ParseAddrPort(seen.RemoteAddr().String())
	if err != nil {
		return err
	}
	if from.Addr() != p.Node.IP4 { // flanneld on the node masquerades with the node's address
		return fmt.Errorf("%s appeared as %s instead of its node's %s", p.Name, from.Addr(), p.Node.IP4)
	}
	d.result("%s (%s) appears as %s, which is %s", p.Name, p.IP4, from.Addr(), p.Node.Name)
	return nil
}

// subnetsOf returns the subnets of a node, at least one, IPv4 first, from the subnet.env
// that flanneld has written.
func subnetsOf(n *lab.Node) (subnets []netip.Prefix, err error) {
	env, err := n.SubnetEnv()
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"FLANNEL_SUBNET", "FLANNEL_IPV6_SUBNET"} {
		if env[name] == "" {
			continue
		}
		p, err := netip.ParsePrefix(env[name])
		if err != nil {
			return nil, fmt.Errorf("subnet.env of %s: %w", n.Name, err)
		}
		subnets = append(subnets, p.Masked()) // subnet.env has the address of the bridge: 10.5.1.1/24
	}
	if subnets == nil {
		err = fmt.Errorf("subnet.env of %s names no subnet", n.Name)
	}
	return subnets, err
}
