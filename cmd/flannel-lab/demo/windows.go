package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/machine"
	"flannel/cmd/flannel-lab/windows"
	"flannel/pkg/windows/hns"
)

// The steps of a lab with Windows nodes: flanneld.exe runs in Wine, and what it writes
// goes to the simulated HNS of its node (lab.Node.Windows). demo.go calls them as it calls
// all steps.

// windows reports whether the lab has Windows nodes.
func (d *show) windows() bool { return d.options.Windows > 0 }

// windowsNodes returns the Windows nodes, which are the last ones of the lab.
func (d *show) windowsNodes() []*lab.Node {
	return d.lab.Nodes[len(d.lab.Nodes)-d.options.Windows:]
}

// hns waits until flanneld.exe has set a policy in HNS for each other node, and shows the
// policies. VSID is what HNS calls a VNI, Provider the other node's address on the underlay,
// and MAC that of its end of the tunnel.
func (d *show) hns(ctx context.Context) error {
	for _, n := range d.windowsNodes() {
		d.prompt(n.Name, "Get-HnsNetwork") // what an administrator would type; here the simulation reports it
		var policies []hns.RemoteSubnet
		_, err := machine.Until(ctx, timeout, func(context.Context) (err error) {
			if policies, err = remoteSubnets(n); err == nil && len(policies) < len(d.lab.Nodes)-1 {
				err = fmt.Errorf("HNS of %s has policies for only %d of %d other nodes", n.Name, len(policies),
					len(d.lab.Nodes)-1)
			}
			return err
		})
		if err != nil {
			return err
		}
		for _, p := range policies {
			d.say("     RemoteSubnetRoute  %s  VSID %d  via %s  %s", p.Prefix, p.VSID, p.Provider, p.MAC)
		}
		d.result("flanneld.exe, in Wine, has configured the simulated HNS of %s to reach %d other nodes", n.Name,
			len(policies))
	}
	return nil
}

// remoteSubnets returns the RemoteSubnetRoute policies of all networks of a Windows node:
// the routes to other nodes' subnets.
func remoteSubnets(n *lab.Node) (all []hns.RemoteSubnet, err error) {
	r, err := n.Windows.Report()
	if err != nil {
		return nil, err
	}
	for _, doc := range r.Networks { // JSON, as HNS returns it
		network, err := hns.DecodeNetwork(doc)
		if err != nil {
			return nil, err
		}
		for _, p := range network.Policies {
			if !p.IsRemoteSubnet() {
				continue
			}
			remote, err := p.RemoteSubnet()
			if err != nil {
				return nil, err
			}
			all = append(all, remote)
		}
	}
	return all, nil
}

// losePolicy removes the policy to the subnet of node1 from HNS, as another program could,
// and waits until flanneld.exe has restored it and a pod there reaches the pod on node1.
func (d *show) losePolicy(ctx context.Context) error {
	n := d.windowsNodes()[0]
	subnets, err := subnetsOf(d.lab.Nodes[0]) // one at least
	if err != nil {
		return err
	}
	begin := time.Now()
	d.prompt(n.Name, "remove the policy to "+subnets[0].String())
	network := fmt.Sprintf("flannel.%d", d.backend.VNI) // flanneld's name of its network
	remove := windows.Order{DeleteRemoteSubnet: [2]string{network, subnets[0].String()}}
	if _, err := n.Windows.Do(remove); err != nil {
		return err
	}
	if _, err := machine.Until(ctx, timeout, func(context.Context) error {
		return hasPolicy(n, subnets[0])
	}); err != nil {
		return err
	}
	took := time.Since(begin)
	last := d.pods[len(d.pods)-1] // on a Windows node, as pods have the order of the nodes
	if _, err := last.Reach(ctx, d.pods[0].IP4, timeout); err != nil {
		return err
	}
	d.result("restored within %v, and %s answers %s", took.Round(100*time.Microsecond), d.pods[0].Name, last.Name)
	return nil
}

// hasPolicy returns an error while HNS has no RemoteSubnetRoute to the prefix.
func hasPolicy(n *lab.Node, to netip.Prefix) error {
	all, err := remoteSubnets(n)
	for _, p := range all {
		if p.Prefix == to {
			return nil
		}
	}
	return errors.Join(err, fmt.Errorf("HNS of %s has no policy to %s", n.Name, to))
}
