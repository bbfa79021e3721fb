package daemon

import (
	"net/netip"
	"slices"

	"flannel/backend"
	"flannel/pkg/plan"
	"flannel/pkg/underlay"
	"flannel/subnet"
)

// node is what is in force: configuration, underlay, lease, and what build makes of
// them. Only the loop modifies it, and joining before. The zero node has not joined.
//
// A change of configuration or underlay is tried on a copy: next := *n, change
// it, build it, and only then *n = next. If one of these steps fails, the node
// in force stays as it was. The copy is shallow, therefore slices and maps of a
// node are replaced and not modified. The exceptions are readdressed, to
// which devices are only added while a lease lasts, and plan, which build replaces.
type node struct {
	config    subnet.Config
	maker     backend.Maker // of config; nil: no configuration was valid yet
	configErr error         // why the configuration is invalid; only before joining
	host      host
	former    former
	lease     subnet.Lease // this node's, with what the devices add to it

	backend  backend.Backend
	plan     *plan.Plan
	warnings []string // of build, as logged

	judged      *plan.Plan      // whose rules the lease manager has
	readdressed map[string]bool // devices that must have the MAC address that the backend derives, or a new key
}

// host is what the node knows about the machine.
type host struct {
	link     underlay.Link
	addrs    []netip.Addr // of this node, sorted
	operator subnet.PublicIPs
}

// former is what the subnet file names of earlier runs; formerOf makes it.
type former struct {
	networks []netip.Prefix // in the subnet file, but not in the configuration: the kernel may have our routes into them
	v4, v6   []netip.Prefix // this node's last subnets, for the subnet file and the pods' bridge
}

// readConfig validates a raw configuration and sets it in n.
func (d *Daemon) readConfig(n *node, raw []byte) error {
	config, maker, warnings, err := d.Parse(raw)
	for _, w := range warnings {
		d.Log.Warn("network configuration: "+w, "cause", causeConfigWarning)
	}
	if err != nil {
		return err
	}
	n.config, n.maker = config, maker
	return nil
}

// build makes the backend and the plan from configuration, underlay and lease,
// and sets the public IPs of the lease. If it fails, n may be changed in part;
// callers that need the state before pass a copy.
func (d *Daemon) build(n *node) error {
	n.config.Underlay = n.host.link.Prefixes()
	if err := n.config.CheckUnderlay(n.lease.V4.Subnet, n.lease.V6.Subnet); err != nil {
		return err
	}
	b, warnings, err := d.newBackend(n)
	if err != nil {
		return err
	}
	warnings = append(warnings, n.config.InsideNetwork()...)
	warnings = append(warnings, n.config.InsideUnderlay(n.lease.V4.Subnet, n.lease.V6.Subnet)...)
	if !slices.Equal(warnings, n.warnings) { // join calls build with every retry
		for _, w := range warnings {
			d.Log.Warn("network configuration: "+w, "cause", causeConfigWarning)
		}
	}
	n.backend, n.warnings = b, warnings
	n.lease.V4.PublicIP, n.lease.V6.PublicIP = netip.Addr{}, netip.Addr{}
	if n.config.V4.On() {
		n.lease.V4.PublicIP = n.host.link.PublicV4
	}
	if n.config.V6.On() {
		n.lease.V6.PublicIP = n.host.link.PublicV6
	}
	n.plan = plan.New(n.config, n.lease, b)
	return nil
}

// newBackend makes the backend for the configuration and the underlay of a node.
func (d *Daemon) newBackend(n *node) (b backend.Backend, warnings []string, err error) {
	sources, ignored := n.tunnelSources(d.Settings.TunnelSources)
	b, warnings, err = n.maker(backend.Node{Underlay: n.host.link, V4: n.config.V4.On(), V6: n.config.V6.On(), Sources: sources})
	return b, slices.Concat(warnings, ignored), err
}

// networks returns the pod networks of the enabled families.
func (n *node) networks() (networks []netip.Prefix) {
	for _, network := range []subnet.Network{n.config.V4, n.config.V6} {
		if network.On() {
			networks = append(networks, network.Prefix)
		}
	}
	return networks
}
