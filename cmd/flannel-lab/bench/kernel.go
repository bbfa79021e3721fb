package bench

import (
	"context"
	"fmt"
	"strings"
	"time"

	"flannel/cmd/flannel-lab/lab"
)

// kernelAlone measures how long the kernel takes for the same entries on a node
// without a daemon, when iproute2 writes them from files. forms are "plain" for
// routes with a gateway, and "nexthop" for routes that each lead through a nexthop object
// of their own. The time includes the start of ip or bridge, and its reading of the file.
func (b *bench) kernelAlone(ctx context.Context, forms []string) error {
	n := b.lab.Nodes[1]
	device := lab.Uplink
	if b.backend == "vxlan" {
		device = "flannel.1"
	}
	total := map[string]float64{}
	for _, form := range forms {
		if b.backend == "vxlan" {
			if err := newVXLAN(ctx, n); err != nil {
				return err
			}
		}
		for _, f := range b.files(form, device) {
			took, err := batch(ctx, n, f)
			if err != nil {
				return err
			}
			b.figures["kernel_"+f.key+"_ms"] = took
			total[form] += took
		}
		b.figures["kernel_"+form+"_ms"] = total[form]
		// Now empty the tables for the next form; newVXLAN makes a new device, without FDB entries.
		if _, err := n.Run(ctx, "ip", "link", "set", device, "down"); err != nil { // which deletes its routes
			return err
		}
		if _, err := n.Run(ctx, "ip", "link", "set", device, "up"); err != nil {
			return err
		}
	}
	return nil
}

// newVXLAN creates the device as a daemon would. Its address is the first of ownMin, the
// range that no peer has.
func newVXLAN(ctx context.Context, n *lab.Node) error {
	_, _ = n.Run(ctx, "ip", "link", "delete", "flannel.1") // left by the previous form
	for _, command := range []string{
		"ip link add flannel.1 type vxlan id 1 dev eth0 local " + n.IP4.String() + " dstport 8472 nolearning",
		"ip address add 10.254.0.0/32 dev flannel.1",
		"ip link set flannel.1 up",
	} {
		if _, err := n.Run(ctx, strings.Fields(command)...); err != nil {
			return err
		}
	}
	return nil
}

// batchFile is the input of a program of iproute2 (ip or bridge) for -batch. key is the
// middle of the figure's key: kernel_KEY_ms.
type batchFile struct{ key, program, text string }

// files returns the batch files for all peers: neighbours and FDB entries for
// vxlan, then routes in a form.
func (b *bench) files(form, device string) []batchFile {
	var neighs, fdb, routes, nexthops strings.Builder
	for i, p := range b.peers {
		via, onlink := p.base(), " onlink"
		if b.backend != "vxlan" {
			via, onlink = p.publicIP(), ""
		}
		fmt.Fprintf(&neighs, "neighbour replace %s lladdr %s dev %s nud permanent\n", p.base(), p.mac(), device)
		fmt.Fprintf(&fdb, "fdb replace %s dev %s dst %s self permanent\n", p.mac(), device, p.publicIP())
		if form == "plain" {
			fmt.Fprintf(&routes, "route replace %s via %s dev %s%s\n", p.subnet(), via, device, onlink)
			continue
		}
		fmt.Fprintf(&nexthops, "nexthop add id %d via %s dev %s%s\n", i+1, via, device, onlink)
		fmt.Fprintf(&routes, "route replace %s nhid %d\n", p.subnet(), i+1)
	}
	var files []batchFile
	if b.backend == "vxlan" {
		files = append(files, batchFile{"neighbours", "ip", neighs.String()}, batchFile{"fdb", "bridge", fdb.String()})
	}
	if form == "plain" {
		return append(files, batchFile{"plain_routes", "ip", routes.String()})
	}
	return append(files, batchFile{"nexthops", "ip", nexthops.String()},
		batchFile{"nexthop_routes", "ip", routes.String()})
}

// batch runs a file and returns the time in milliseconds.
func batch(ctx context.Context, n *lab.Node, f batchFile) (float64, error) {
	if err := n.WriteFile("/run/batch", f.text); err != nil {
		return 0, err
	}
	began := time.Now()
	_, err := n.Run(ctx, f.program, "-batch", "/run/batch")
	return milliseconds(time.Since(began)), err
}
