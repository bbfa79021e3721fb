package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"

	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/machine"
)

// timeout is how long a demo waits for a single event. It normally takes far
// less, but the machine may be busy.
const timeout = 2 * time.Minute

// loseRoute deletes a route and waits until it is restored, while pods are
// pinged.
func (d *show) loseRoute(ctx context.Context) error {
	n := d.lab.Nodes[0]
	subnets, err := subnetsOf(d.lab.Nodes[1]) // one at least, IPv4 first
	if err != nil {
		return err
	}
	flood, err := d.pods[0].Flood(d.pods[1].IP4, 500) // pings a second
	if err != nil {
		return err
	}
	time.Sleep(200 * time.Millisecond) // some pings before the fault, to compare
	begin := time.Now()                // before the command, so that its time is included
	_, err = d.run(ctx, n.Name, n.Namespaces, "ip", "route", "del", subnets[0].String())
	if err == nil {
		_, err = machine.Until(ctx, timeout, func(context.Context) error { return hasRoute(n, subnets[0]) })
	}
	took := time.Since(begin)
	time.Sleep(200 * time.Millisecond)
	// Stop also after an error: the goroutines of the flood would go on. Lost pings
	// are shown, but are no failure, since there was no route for a moment.
	r, floodErr := flood.Stop()
	if err := errors.Join(err, floodErr); err != nil {
		return err
	}
	if _, err := d.run(ctx, n.Name, n.Namespaces, "ip", "route", "show", subnets[0].String()); err != nil {
		return err
	}
	d.result("restored within %v of the command; 500 pings a second between %s and %s: %s",
		took.Round(100*time.Microsecond), d.pods[0].Name, d.pods[1].Name, r)
	return nil
}

// hasRoute returns an error while n has no route to the prefix.
func hasRoute(n *lab.Node, to netip.Prefix) error {
	return n.Do(func() error {
		dst := &net.IPNet{IP: to.Addr().AsSlice(), Mask: net.CIDRMask(to.Bits(), to.Addr().BitLen())}
		routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Dst: dst}, netlink.RT_FILTER_DST)
		if err == nil && len(routes) == 0 {
			err = fmt.Errorf("no route to %s", to)
		}
		return err
	})
}

// loseDevice deletes the tunnel device and waits until all pods reach each
// other again.
func (d *show) loseDevice(ctx context.Context) error {
	n := d.lab.Nodes[0]
	begin := time.Now()
	if _, err := d.run(ctx, n.Name, n.Namespaces, "ip", "link", "del", d.device()); err != nil {
		return err
	}
	for _, p := range d.pods[1:] { // in both directions, because the others must find this node again
		if _, err := d.pods[0].Reach(ctx, p.IP4, timeout); err != nil {
			return err
		}
		if _, err := p.Reach(ctx, d.pods[0].IP4, timeout); err != nil {
			return err
		}
	}
	took := time.Since(begin)
	if _, err := d.run(ctx, n.Name, n.Namespaces, "ip", "-br", "link", "show", d.device()); err != nil {
		return err
	}
	d.result("device and all entries are restored: every pod answers within %v of the command",
		took.Round(time.Millisecond))
	return nil
}

// kill kills flanneld on node1 and starts it again, while pods are pinged. In contrast
// to loseRoute, the kernel keeps all entries, so a lost ping is a failure.
func (d *show) kill(ctx context.Context) error {
	return d.whilePinging(func() error { return d.killAndStart(ctx, d.lab.Nodes[0]) })
}

// whilePinging does work while the first pod pings the second one. It fails if work fails
// or a ping is lost.
func (d *show) whilePinging(work func() error) error {
	flood, err := d.pods[0].Flood(d.pods[1].IP4, 500) // pings a second
	if err != nil {
		return err
	}
	err = work()
	r, floodErr := flood.Stop() // also after an error: the goroutines of the flood would go on
	if err := errors.Join(err, floodErr); err != nil {
		return err
	}
	if r.Lost > 0 {
		return fmt.Errorf("of the pings between %s and %s: %s (longest outage %v)", d.pods[0].Name, d.pods[1].Name, r,
			r.Outage)
	}
	d.result("500 pings a second between %s and %s meanwhile: %s", d.pods[0].Name, d.pods[1].Name, r)
	return nil
}

// killAndStart kills flanneld by SIGKILL, as the OOM killer would, and starts it again
// a second later. The pauses let some pings pass before the kill, without flanneld, and
// after the start.
func (d *show) killAndStart(ctx context.Context, n *lab.Node) error {
	time.Sleep(200 * time.Millisecond)
	pid, err := n.PIDInside() // kill runs in the PID namespace of the node
	if err != nil {
		return err
	}
	if _, err := d.run(ctx, n.Name, n.Namespaces, "kill", "-9", fmt.Sprint(pid)); err != nil {
		return err
	}
	code, err := n.Wait(ctx)
	if err != nil {
		return err
	}
	d.result("flanneld on %s has exited (status %d); its entries stay in the kernel", n.Name, code)
	time.Sleep(time.Second)
	begin := time.Now()
	d.prompt(n.Name, "flanneld …")
	if err := n.Start(); err != nil {
		return err
	}
	if err := n.Ready(ctx); err != nil {
		return err
	}
	d.result("ready again after %v", time.Since(begin).Round(time.Millisecond))
	time.Sleep(time.Second)
	return nil
}
